//! Credential plugins: programs that a kubeconfig file names in `exec`, and that print a token or a certificate.
//!
//! They are not run by the client library, which waits for them without a limit on the thread of the watches.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use kube::config::{AuthInfo, ExecConfig, ExecInteractiveMode};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

use super::process_group::Group;

/// The longest time that a plugin may take. It is ended then, with the programs that it started.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
/// The longest answer in bytes, 1 MiB, and as much is read of standard error.
const MAX_OUTPUT: u64 = 1 << 20;
/// The number of characters of standard error that an error has.
const MAX_REASON: usize = 300;

/// Runs the plugin of a user that has no other credentials, and gives the user those that it prints. Returns until when they are valid.
///
/// # Errors
/// Why the plugin gives no credentials, with its name.
pub(super) async fn log_in(user: &mut AuthInfo, limit: Duration) -> Result<Option<Timestamp>, String> {
    if let Some(provider) = user
        .auth_provider
        .as_ref()
        .filter(|provider| provider.name != "oidc")
    {
        let name = &provider.name;
        return Err(format!(
            "users[].user.auth-provider.name: {name:?} is not supported; known: oidc. Use a credential plugin (users[].user.exec)"
        ));
    }
    // As in client-go, empty ones do not replace a plugin.
    user.token.take_if(|token| token.expose_secret().is_empty());
    user.username.take_if(|name| name.is_empty());
    let has_others = user.token.is_some() || user.token_file.is_some() || user.username.is_some();
    let Some(exec) = user.exec.take().filter(|_| !has_others) else {
        return Ok(None);
    };
    let Some(name) = exec.command.clone() else {
        return Err("users[].user.exec.command is missing".to_owned());
    };
    let failed = |reason: String| format!("the credential plugin {name:?} {reason}");
    let command = command(&name, &exec).map_err(failed)?;
    let answer = match tokio::time::timeout(limit, run(command)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(reason)) => {
            let hint = exec.install_hint.as_ref();
            return Err(failed(
                hint.map_or(reason.clone(), |hint| format!("{reason}; {hint}")),
            ));
        }
        Err(_) => return Err(failed(format!("was ended: it took longer than {limit:?}"))),
    };
    let answer: Value = serde_json::from_slice(&answer)
        .map_err(|error| failed(format!("did not print an ExecCredential in JSON: {error}")))?;
    apply(&answer, exec.api_version.as_deref(), user)
        .map_err(|reason| failed(format!("printed an invalid ExecCredential: {reason}")))
}

/// The command line and environment of the plugin.
fn command(name: &str, exec: &ExecConfig) -> Result<Command, String> {
    if exec.interactive_mode == Some(ExecInteractiveMode::Always) {
        return Err("needs a terminal (interactiveMode: Always), and the agent has none".to_owned());
    }
    let mut spec = json!({"interactive": false});
    if let Some(cluster) = exec.cluster.as_ref().filter(|_| exec.provide_cluster_info) {
        let cluster = serde_json::to_value(cluster)
            .map_err(|error| format!("cannot be told about the cluster: {error}"))?;
        spec["cluster"] = cluster;
    }
    let info = json!({"kind": "ExecCredential", "apiVersion": exec.api_version, "spec": spec});
    let mut command = Command::new(name);
    command
        .args(exec.args.iter().flatten())
        .env("KUBERNETES_EXEC_INFO", info.to_string());
    for variable in exec.env.iter().flatten() {
        if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
            command.env(name, value);
        }
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Ok(command)
}

/// Runs a program to its end. Returns what it printed.
async fn run(mut command: Command) -> Result<Vec<u8>, String> {
    let cannot_start = |error: io::Error| format!("cannot be started: {error}");
    let mut group = Group::spawn(&mut command).map_err(cannot_start)?;
    let (output, errors) = group.take_output();
    let (output, errors) = (read(output), read(errors));
    let (output, errors) =
        tokio::try_join!(output, errors).map_err(|error| format!("cannot be read: {error}"))?;
    let status = group.wait().await;
    let status = status.map_err(|error| format!("cannot be awaited: {error}"))?;
    if !status.success() {
        let errors = String::from_utf8_lossy(&errors);
        let reason: String = errors
            .trim_end()
            .lines()
            .last()
            .unwrap_or_default()
            .chars()
            .take(MAX_REASON)
            .collect();
        return Err(format!("failed ({status}): {reason:?}"));
    }
    if output.len() as u64 == MAX_OUTPUT {
        return Err(format!("printed more than {} bytes", MAX_OUTPUT - 1));
    }
    Ok(output)
}

/// Reads a pipe to its end. Keeps the beginning.
async fn read(pipe: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut beginning = Vec::new();
    if let Some(mut pipe) = pipe {
        (&mut pipe).take(MAX_OUTPUT).read_to_end(&mut beginning).await?;
        tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await?;
    }
    Ok(beginning)
}

/// Gives the user the credentials of an answer.
fn apply(answer: &Value, version: Option<&str>, user: &mut AuthInfo) -> Result<Option<Timestamp>, String> {
    let text = |field: &str| answer.pointer(field).and_then(Value::as_str);
    let printed = text("/apiVersion").unwrap_or_default();
    if let Some(version) = version.filter(|version| *version != printed) {
        return Err(format!(
            "apiVersion is {printed:?}, and the kubeconfig file names {version:?}"
        ));
    }
    let token = text("/status/token").filter(|token| !token.is_empty());
    let certificate = text("/status/clientCertificateData").filter(|data| !data.is_empty());
    let key = text("/status/clientKeyData").filter(|data| !data.is_empty());
    if token.is_none() && certificate.is_none() {
        return Err("status has neither token nor clientCertificateData".to_owned());
    }
    if certificate.is_some() != key.is_some() {
        return Err(
            "of status.clientCertificateData and status.clientKeyData only one is present".to_owned(),
        );
    }
    let expiry = text("/status/expirationTimestamp").map(str::parse).transpose();
    let expiry = expiry.map_err(|error| format!("status.expirationTimestamp: {error}"))?;
    if let Some(token) = token {
        user.token = Some(SecretString::from(token));
    }
    if let (Some(certificate), Some(key)) = (certificate, key) {
        user.client_certificate_data = Some(STANDARD.encode(certificate));
        user.client_key_data = Some(SecretString::from(STANDARD.encode(key)));
    }
    Ok(expiry)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_LIMIT: Duration = Duration::from_secs(600);

    fn user(exec: &Value) -> AuthInfo {
        serde_json::from_value(json!({"exec": exec})).unwrap()
    }

    /// A user whose plugin is a script.
    fn script(text: &str) -> AuthInfo {
        user(&json!({
            "apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/sh", "args": ["-c", text],
            "env": [{"name": "ANSWER", "value": answer(&json!({"token": "secret"}))}],
        }))
    }

    fn answer(status: &Value) -> String {
        json!({"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": status})
            .to_string()
    }

    fn log_in_of(user: &mut AuthInfo, limit: Duration) -> Result<Option<Timestamp>, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(log_in(user, limit))
    }

    fn token(user: &AuthInfo) -> Option<&str> {
        user.token.as_ref().map(ExposeSecret::expose_secret)
    }

    #[test]
    fn a_plugin_gives_a_token_and_a_certificate() {
        let mut user = script("echo \"$ANSWER\"; echo >&2 a warning");
        assert_eq!(log_in_of(&mut user, NO_LIMIT), Ok(None));
        assert_eq!(token(&user), Some("secret"));
        let status = json!({"clientCertificateData": "c", "clientKeyData": "k", "expirationTimestamp": "2026-11-22T12:00:00Z"});
        let printed = serde_json::from_str(&answer(&status)).unwrap();
        let mut user = AuthInfo::default();
        let expiry = apply(&printed, Some("client.authentication.k8s.io/v1"), &mut user).unwrap();
        assert_eq!(expiry.unwrap().to_string(), "2026-11-22T12:00:00Z");
        assert_eq!(user.client_certificate_data.unwrap(), STANDARD.encode("c"));
        assert_eq!(
            user.client_key_data.unwrap().expose_secret(),
            &STANDARD.encode("k")
        );
    }

    #[test]
    fn empty_credentials_are_none() {
        let mut user = script("echo \"$ANSWER\"");
        user.token = Some(SecretString::from(""));
        user.username = Some(String::new());
        assert_eq!(log_in_of(&mut user, NO_LIMIT), Ok(None));
        assert_eq!(token(&user), Some("secret"));
        assert_eq!(user.username, None);
    }

    #[test]
    fn a_plugin_receives_the_cluster() {
        let mut user = script("printf '%s' \"$KUBERNETES_EXEC_INFO\" >&2; exit 3");
        let exec = user.exec.as_mut().unwrap();
        exec.provide_cluster_info = true;
        exec.cluster = serde_json::from_value(json!({"server": "https://server"})).unwrap();
        let error = log_in_of(&mut user, NO_LIMIT).unwrap_err();
        assert!(
            error.starts_with("the credential plugin \"/bin/sh\" failed (exit status: 3): "),
            "{error}"
        );
        let info = r#"{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"spec\":{\"cluster\":{\"server\":\"https://server\"},\"interactive\":false}}"#;
        assert!(error.contains(info), "{error}");
    }

    #[test]
    fn a_plugin_that_hangs_is_ended_at_the_limit() {
        let folder = fifo();
        let mut user = script(&format!("read line < {}/fifo", folder.path().display()));
        assert_eq!(
            log_in_of(&mut user, Duration::from_millis(20)).unwrap_err(),
            "the credential plugin \"/bin/sh\" was ended: it took longer than 20ms"
        );
    }

    #[test]
    fn a_plugin_ends_with_what_it_started_if_it_is_no_longer_awaited() {
        let folder = fifo();
        let folder = folder.path();
        // The plugin has ended, but what it started keeps its standard output open.
        let inner = "echo $$ > pid; read line < fifo";
        let mut user = script(&format!("cd {}; /bin/sh -c '{inner}' & exit 0", folder.display()));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let pid = runtime.block_on(async {
            tokio::select! {
                result = log_in(&mut user, NO_LIMIT) => panic!("{result:?}"),
                pid = async {
                    loop {
                        match std::fs::read_to_string(folder.join("pid")) {
                            Ok(pid) if pid.ends_with('\n') => break pid,
                            _ => tokio::time::sleep(Duration::from_millis(1)).await,
                        }
                    }
                } => pid,
            }
        });
        let state = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).ok()?;
            stat.rsplit_once(") ")?.1.chars().next()
        };
        let has_ended = || matches!(state(), None | Some('Z' | 'X'));
        let ended = (0..60_000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            has_ended()
        });
        assert!(ended, "{:?}", state());
    }

    /// A folder with `fifo`, which blocks a process that opens it.
    fn fifo() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        nix::unistd::mkfifo(&folder.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        folder
    }

    #[test]
    fn other_credentials_take_precedence() {
        let mut user = script("exit 1");
        user.token = Some(SecretString::from("file"));
        assert_eq!(log_in_of(&mut user, NO_LIMIT), Ok(None));
        assert_eq!(token(&user), Some("file"));
        assert!(user.exec.is_none(), "the client library does not run it either");
    }

    #[test]
    fn errors_name_the_plugin() {
        let error = |mut user: AuthInfo| log_in_of(&mut user, NO_LIMIT).unwrap_err();
        let missing = user(&json!({"command": "/missing/login", "installHint": "install it"}));
        assert_eq!(
            error(missing),
            "the credential plugin \"/missing/login\" cannot be started: No such file or directory (os error 2); install it"
        );
        let terminal = user(&json!({"command": "login", "interactiveMode": "Always"}));
        assert!(error(terminal).starts_with("the credential plugin \"login\" needs a terminal"));
        assert!(error(script("echo no")).contains("\"/bin/sh\" did not print an ExecCredential in JSON"));
        assert!(error(script(
            "i=0; while [ $i -lt 20000 ]; do echo 0123456789012345678901234567890123456789012345678901234567890123; i=$((i + 1)); done"
        )).ends_with("printed more than 1048575 bytes"));
        let provider: AuthInfo = serde_json::from_value(json!({"auth-provider": {
            "name": "gcp", "config": {"cmd-path": "/bin/true"}}}))
        .unwrap();
        assert!(error(provider).contains("\"gcp\" is not supported"));
        let invalid = |status: Value, version: &str| {
            let answer = serde_json::from_str(&answer(&status)).unwrap();
            apply(&answer, Some(version), &mut AuthInfo::default()).unwrap_err()
        };
        let version = "client.authentication.k8s.io/v1";
        assert!(invalid(json!({"token": ""}), version).contains("neither token nor"));
        assert!(
            invalid(json!({"clientKeyData": "k", "token": "t"}), version).contains("only one is present")
        );
        assert!(
            invalid(json!({"token": "t", "expirationTimestamp": "soon"}), version)
                .contains("expirationTimestamp")
        );
        assert!(invalid(json!({"token": "t"}), "client.authentication.k8s.io/v1beta1").contains("v1beta1"));
    }
}
