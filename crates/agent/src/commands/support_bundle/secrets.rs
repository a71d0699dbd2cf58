//! The credentials that this node has for the API server. They are in no answer of the agent; a message of another program may quote one.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kube::config::{AuthInfo, Kubeconfig};
use secrecy::ExposeSecret;

use crate::flags::Flags;
use crate::query::documents::Support;
use crate::settings::Settings;

/// The token of the pod.
const POD_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// The shortest value that is searched, in bytes: a shorter one is in many texts by chance.
const MIN_VALUE: usize = 6;
/// The largest file with a credential, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// The values that are found. What cannot be read has none.
/// `answer`: of the running agent, which may have other flags than `flags`.
pub(super) fn of_node(
    flags: Option<&Flags>,
    settings: Option<&Settings>,
    answer: Option<&Support>,
) -> Vec<String> {
    let mut values = Values::default();
    values.file(Path::new(POD_TOKEN));
    if let Some(file) = settings.map(|settings| settings.file.client_connection.kubeconfig.clone())
        && !file.is_empty()
    {
        values.kubeconfig(Path::new(&file));
    }
    // The settings are not known if another flag is invalid.
    if let Some(file) = flags.and_then(|flags| flags.given.0.get("kubeconfig")) {
        values.kubeconfig(Path::new(file));
    }
    if let Some(answer) = answer {
        let field = answer.configuration["clientConnection"]["kubeconfig"].as_str();
        let flag = answer.flags.get("kubeconfig").map(String::as_str);
        for file in field.into_iter().chain(flag).filter(|file| !file.is_empty()) {
            values.kubeconfig(Path::new(file));
        }
    }
    values.0.retain(|value| value.len() >= MIN_VALUE);
    values.0
}

#[derive(Default)]
struct Values(Vec<String>);

impl Values {
    fn add(&mut self, value: &str) {
        self.0.push(value.trim().to_owned());
    }

    /// The content of a file, and each of its lines: those of a key.
    fn file(&mut self, path: &Path) {
        let is_small = fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() <= MAX_FILE);
        let Some(content) = is_small.then(|| fs::read_to_string(path).ok()).flatten() else {
            return;
        };
        self.content(&content);
    }

    fn content(&mut self, content: &str) {
        self.add(content);
        let lines = content.lines().filter(|line| !line.starts_with("-----"));
        self.0.extend(lines.map(|line| line.trim().to_owned()));
    }

    fn kubeconfig(&mut self, path: &Path) {
        // It resolves paths that are relative to the file.
        let Ok(kubeconfig) = Kubeconfig::read_from(path) else {
            return;
        };
        let users = kubeconfig
            .auth_infos
            .iter()
            .filter_map(|named| named.auth_info.as_ref());
        users.for_each(|user| self.user(user));
    }

    fn user(&mut self, user: &AuthInfo) {
        for secret in [&user.token, &user.password, &user.client_key_data]
            .into_iter()
            .flatten()
        {
            let secret = secret.expose_secret();
            self.add(secret);
            // The data of a key is in base64.
            let decoded = BASE64_STANDARD.decode(secret.trim()).ok();
            if let Some(decoded) = decoded.and_then(|decoded| String::from_utf8(decoded).ok()) {
                self.content(&decoded);
            }
        }
        if let (Some(name), Some(password)) = (&user.username, &user.password) {
            self.add(&format!("{name}:{}", password.expose_secret()));
        }
        for path in [&user.token_file, &user.client_key].into_iter().flatten() {
            self.file(&PathBuf::from(path));
        }
        if let Some(exec) = &user.exec {
            let values = exec
                .env
                .iter()
                .flatten()
                .filter_map(|variable| variable.get("value"));
            values.for_each(|value| self.add(value));
            exec.args.iter().flatten().for_each(|argument| {
                self.add(argument);
                if let Some((_, value)) = argument.split_once('=') {
                    self.add(value);
                }
            });
        }
        let provider = user
            .auth_provider
            .iter()
            .flat_map(|provider| provider.config.values());
        provider.for_each(|value| self.add(value));
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn the_credentials_of_a_kubeconfig_file_are_found() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("token"), "of-a-file\n").unwrap();
        fs::write(
            folder.path().join("key"),
            "-----BEGIN KEY-----\nlineofakey\n-----END KEY-----\n",
        )
        .unwrap();
        let file = folder.path().join("kubeconfig");
        let users = [
            "token: of-the-user",
            "tokenFile: token",
            "client-key: key",
            "client-key-data: LS0tLS1CRUdJTiBLRVktLS0tLQpvdGhlcmtleWxpbmUK",
            "username: u, password: a-password",
            "exec: {command: c, args: [\"--secret=argument\"], env: [{name: N, value: of-the-environment}, {name: M, value: \"1\"}]}",
        ];
        let users: String = users
            .iter()
            .enumerate()
            .map(|(number, user)| format!("- {{name: u{number}, user: {{{user}}}}}\n"))
            .collect();
        fs::write(&file, format!("apiVersion: v1\nkind: Config\nusers:\n{users}")).unwrap();
        let line = ["--kubeconfig", file.to_str().unwrap()].map(OsString::from);
        let of_flags = of_node(Some(&Flags::parse(line).unwrap()), None, None);
        // Those of the running agent, if these flags name other files or none.
        let file = file.to_str().unwrap();
        let by_flag = Support {
            flags: [("kubeconfig".to_owned(), file.to_owned())].into(),
            ..Support::default()
        };
        let by_field = Support {
            configuration: serde_json::json!({"clientConnection": {"kubeconfig": file}}),
            ..Support::default()
        };
        for answer in [by_flag, by_field] {
            assert_eq!(of_node(None, None, Some(&answer)), of_flags);
        }
        let found = of_flags;
        for expected in [
            "of-the-user",
            "of-a-file",
            "lineofakey",
            "otherkeyline",
            "a-password",
            "u:a-password",
            "argument",
            "of-the-environment",
        ] {
            assert!(
                found.iter().any(|value| value == expected),
                "{expected}: {found:?}"
            );
        }
        assert!(!found.iter().any(|value| value == "1"), "{found:?}");
    }
}
