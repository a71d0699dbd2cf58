//! Bearer tokens.

use std::fs;

use hyper::header::HeaderValue;
use kube::config::AuthInfo;
use secrecy::{ExposeSecret, SecretString};

use super::files::Files;

/// Reads the token file of a user, without white space at its ends. As in client-go, it takes precedence over the field `token`, which is used
/// if the file cannot be used and never could: `has_former` is whether a client with earlier credentials works.
///
/// # Errors
/// If the file cannot be read or is empty.
pub(super) fn read(user: &mut AuthInfo, has_former: bool, files: &mut Files) -> Result<(), String> {
    user.token_file.take_if(|path| path.is_empty());
    let Some(path) = &user.token_file else {
        return Ok(());
    };
    files.add(path);
    match read_file(path) {
        Ok(token) => user.token = Some(token),
        Err(problem) => {
            let has_token = user
                .token
                .as_ref()
                .is_some_and(|token| !token.expose_secret().is_empty());
            if has_former || !has_token {
                return Err(problem);
            }
            tracing::warn!("{problem}; the field token is used instead");
        }
    }
    Ok(())
}

fn read_file(path: &str) -> Result<SecretString, String> {
    let text = fs::read_to_string(path)
        .map_err(|error| format!("the token file {path}: cannot be read: {error}"))?;
    match text.trim() {
        "" => Err(format!("the token file {path}: is empty")),
        token => Ok(SecretString::from(token)),
    }
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
            read(&mut user, false, &mut files)?;
            fs::remove_file(&path).unwrap();
            let is_known = files.changed().is_some();
            assert_eq!(check(&user), Ok(()));
            let token = user.token.as_ref().map(ExposeSecret::expose_secret);
            Ok::<_, String>((token.unwrap_or_default().to_owned(), is_known))
        };
        assert_eq!(read_token(" secret\n", None), Ok(("secret".to_owned(), true)));
        assert_eq!(read_token("secret", Some("")), Ok(("secret".to_owned(), true)));
        assert!(read_token("\n", None).unwrap_err().ends_with("token: is empty"));
        fs::remove_file(&path).unwrap();
        let missing = read(
            &mut user(json!({"tokenFile": path})),
            false,
            &mut Files::default(),
        );
        assert!(
            missing
                .unwrap_err()
                .contains("token: cannot be read: No such file")
        );
    }

    #[test]
    fn a_token_file_takes_precedence_over_the_token() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let read_token = |has_former: bool| {
            let mut user = user(json!({"tokenFile": path, "token": "field"}));
            read(&mut user, has_former, &mut Files::default())?;
            let token = user.token.as_ref().map(ExposeSecret::expose_secret);
            Ok::<_, String>(token.unwrap_or_default().to_owned())
        };
        fs::write(&path, "file\n").unwrap();
        assert_eq!(read_token(false).as_deref(), Ok("file"));
        assert_eq!(read_token(true).as_deref(), Ok("file"));
        // The token that was read before stays in use.
        for change in [|path| fs::write(path, ""), |path| fs::remove_file(path)] {
            change(&path).unwrap();
            assert_eq!(read_token(false).as_deref(), Ok("field"));
            assert!(read_token(true).unwrap_err().starts_with("the token file "));
        }
        let mut none = user(json!({"tokenFile": "", "token": "field"}));
        assert_eq!(read(&mut none, true, &mut Files::default()), Ok(()));
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
