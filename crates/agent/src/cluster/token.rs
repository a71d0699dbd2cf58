//! Bearer tokens.

use std::fs;

use hyper::header::HeaderValue;
use kube::config::AuthInfo;
use secrecy::{ExposeSecret, SecretString};

use super::files::Files;

/// Reads the token file of a user that has no token, without white space at its ends, as client-go.
///
/// # Errors
/// If the file cannot be read or is empty.
pub(super) fn read(user: &mut AuthInfo, files: &mut Files) -> Result<(), String> {
    let has_token = user
        .token
        .as_ref()
        .is_some_and(|token| !token.expose_secret().is_empty());
    let Some(path) = user.token_file.as_ref().filter(|_| !has_token) else {
        return Ok(());
    };
    files.add(path);
    let text = fs::read_to_string(path)
        .map_err(|error| format!("the token file {path}: cannot be read: {error}"))?;
    let token = text.trim();
    if token.is_empty() {
        return Err(format!("the token file {path}: is empty"));
    }
    user.token = Some(SecretString::from(token));
    Ok(())
}

/// Finds out whether the token of a user can be sent. The client library would panic.
///
/// # Errors
/// If it has a character that a header cannot have.
pub(super) fn check(user: &AuthInfo) -> Result<(), String> {
    let of_provider = user.auth_provider.as_ref();
    let of_provider = of_provider.and_then(|provider| provider.config.get("id-token"));
    let token = user.token.as_ref().map(ExposeSecret::expose_secret);
    for token in token.into_iter().chain(of_provider.map(String::as_str)) {
        if HeaderValue::from_str(token).is_err() {
            return Err(
                "the token has a line feed or another character that is not valid in an HTTP header"
                    .to_owned(),
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn user(fields: Value) -> AuthInfo {
        serde_json::from_value(fields).unwrap()
    }

    #[test]
    fn a_token_file_is_read_without_the_white_space_at_its_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let read_token = |text: &str, token: Option<&str>| {
            fs::write(&path, text).unwrap();
            let mut user = user(json!({"tokenFile": path, "token": token}));
            let mut files = Files::default();
            read(&mut user, &mut files)?;
            fs::remove_file(&path).unwrap();
            let is_known = files.changed().is_some();
            assert_eq!(check(&user), Ok(()));
            let token = user.token.as_ref().map(ExposeSecret::expose_secret);
            Ok::<_, String>((token.unwrap_or_default().to_owned(), is_known))
        };
        assert_eq!(read_token(" secret\n", None), Ok(("secret".to_owned(), true)));
        assert_eq!(read_token("secret", Some("")), Ok(("secret".to_owned(), true)));
        assert_eq!(read_token("file", Some("field")), Ok(("field".to_owned(), false)));
        assert!(read_token("\n", None).unwrap_err().ends_with("token: is empty"));
        fs::remove_file(&path).unwrap();
        let missing = read(&mut user(json!({"tokenFile": path})), &mut Files::default());
        assert!(
            missing
                .unwrap_err()
                .contains("token: cannot be read: No such file")
        );
    }

    #[test]
    fn a_token_that_no_header_can_have_is_an_error_without_the_token() {
        let provider = json!({"name": "oidc", "config": {"id-token": "secret\n"}});
        for user in [
            user(json!({"token": "secret\nline"})),
            user(json!({"auth-provider": provider})),
        ] {
            let error = check(&user).unwrap_err();
            assert!(!error.contains("secret"), "{error}");
        }
        assert_eq!(check(&user(json!({"token": "secret"}))), Ok(()));
    }
}
