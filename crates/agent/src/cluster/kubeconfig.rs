//! The kubeconfig file.

use std::path::Path;

use kube::Config;
use kube::config::{Context, KubeConfigOptions, Kubeconfig, KubeconfigError, NamedCluster};

use super::files::Files;

/// Reads the current context of a kubeconfig file, and its proxy. `master` replaces the address of the server. Adds the file and the
/// certificate authority of this context to `files`.
///
/// # Errors
/// What cannot be read or is missing, with the field. No part of the file is quoted that could be a secret.
pub(super) async fn read(
    path: &Path,
    master: Option<&str>,
    files: &mut Files,
) -> Result<(Config, Option<String>), String> {
    files.add(path);
    let mut kubeconfig = Kubeconfig::read_from(path).map_err(|error| describe(&error))?;
    if let Some(master) = master {
        for cluster in kubeconfig
            .clusters
            .iter_mut()
            .filter_map(|named| named.cluster.as_mut())
        {
            cluster.server = Some(master.to_owned());
        }
    }
    let cluster = check(&kubeconfig)?.cluster.as_ref();
    let proxy = cluster.and_then(|cluster| cluster.proxy_url.clone());
    let authority = cluster.and_then(|cluster| cluster.certificate_authority.as_ref());
    authority.into_iter().for_each(|authority| files.add(authority));
    // Otherwise the client library would report an invalid one without its field.
    for named in &mut kubeconfig.clusters {
        named.cluster.as_mut().map(|cluster| cluster.proxy_url.take());
    }
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let config = config.map_err(|error| describe(&error))?;
    if config.root_cert.as_ref().is_some_and(Vec::is_empty) {
        return Err("clusters[].cluster.certificate-authority: has no certificate (PEM)".to_owned());
    }
    Ok((config, proxy))
}

/// The cluster of the current context, if that is complete. The client library uses no credentials if the user is missing; client-go refuses the
/// file.
fn check(kubeconfig: &Kubeconfig) -> Result<&NamedCluster, String> {
    let current = kubeconfig.current_context.as_deref().unwrap_or_default();
    if current.is_empty() {
        return Err("current-context is missing".to_owned());
    }
    let contexts = &kubeconfig.contexts;
    let context = contexts.iter().find(|named| named.name == current);
    let Some(Context { cluster, user, .. }) = context.and_then(|named| named.context.as_ref()) else {
        let known = contexts.iter().map(|named| named.name.as_str());
        return Err(missing("current-context", current, "contexts", known));
    };
    let clusters = &kubeconfig.clusters;
    let Some(found) = clusters.iter().find(|named| named.name == *cluster) else {
        let known = clusters.iter().map(|named| named.name.as_str());
        return Err(missing("contexts[].context.cluster", cluster, "clusters", known));
    };
    let users = &kubeconfig.auth_infos;
    if let Some(user) = user.as_ref().filter(|user| !user.is_empty())
        && !users.iter().any(|named| named.name == *user)
    {
        let known = users.iter().map(|named| named.name.as_str());
        return Err(missing("contexts[].context.user", user, "users", known));
    }
    Ok(found)
}

fn missing<'a>(field: &str, name: &str, list: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.collect();
    let known = if known.is_empty() {
        "nothing".to_owned()
    } else {
        known.join(", ")
    };
    format!("{field}: {name:?} is not in {list}, which has {known}")
}

/// An error of the client library.
fn describe(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(error, _) => format!("cannot be read: {error}"),
        KubeconfigError::MissingClusterUrl => "clusters[].cluster.server is missing".to_owned(),
        KubeconfigError::ParseClusterUrl(error) => format!("clusters[].cluster.server: {error}"),
        KubeconfigError::LoadCertificateAuthority(error) => {
            format!("clusters[].cluster.certificate-authority: {error}")
        }
        KubeconfigError::ParseCertificates(error) => {
            format!("clusters[].cluster.certificate-authority: {error}")
        }
        // The lines that follow quote the file.
        other => plain(other.to_string().lines().next().unwrap_or_default()),
    }
}

/// `line 3 column 11: expected a list` for `failed to parse kubeconfig YAML: error: line 3 column 11: expected sequence start`.
fn plain(message: &str) -> String {
    let message = message
        .strip_prefix("failed to parse kubeconfig YAML: ")
        .unwrap_or(message);
    let message = message.strip_prefix("error: ").unwrap_or(message);
    [
        ("expected sequence start", "expected a list"),
        ("expected mapping start", "expected an object"),
        ("expected string scalar", "expected a text"),
    ]
    .iter()
    .fold(message.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};

    use super::*;

    /// A file with one context, in which `change` replaced something.
    fn error(change: impl FnOnce(&mut Value)) -> String {
        let mut file = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "k", "cluster": {"server": "https://192.0.2.1:6443"}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        });
        change(&mut file);
        error_of(&file.to_string())
    }

    fn error_of(text: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        fs::write(&path, text).unwrap();
        fs::write(folder.path().join("empty"), "").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let config = runtime.block_on(read(&path, None, &mut Files::default()));
        config
            .err()
            .unwrap_or_default()
            .replace(&folder.path().display().to_string(), "")
    }

    #[test]
    fn errors_name_the_field_and_what_is_valid() {
        assert_eq!(error(|_| {}), "");
        assert_eq!(
            error(|file| file["contexts"][0]["context"]["user"] = json!("")),
            ""
        );
        let missing = "current-context is missing";
        assert_eq!(error(|file| file["current-context"] = json!("")), missing);
        assert_eq!(error_of(""), missing);
        assert_eq!(
            error(|file| file["current-context"] = json!("d")),
            "current-context: \"d\" is not in contexts, which has c"
        );
        assert_eq!(
            error(|file| file["clusters"] = json!([])),
            "contexts[].context.cluster: \"k\" is not in clusters, which has nothing"
        );
        assert_eq!(
            error(|file| file["users"][0]["name"] = json!("v")),
            "contexts[].context.user: \"u\" is not in users, which has v"
        );
        assert_eq!(
            error(|file| file["clusters"][0]["cluster"] = json!({})),
            "clusters[].cluster.server is missing"
        );
        let authority = |name: &str| {
            let name = json!(name);
            error(|file| file["clusters"][0]["cluster"]["certificate-authority"] = name)
        };
        assert_eq!(
            authority("empty"),
            "clusters[].cluster.certificate-authority: has no certificate (PEM)"
        );
        let text = authority("missing");
        assert!(
            text.starts_with("clusters[].cluster.certificate-authority: ") && text.contains("/missing"),
            "{text}"
        );
    }

    #[test]
    fn only_the_certificate_authority_of_the_current_context_is_watched() {
        let folder = tempfile::tempdir().unwrap();
        let [path, used, other] = ["kubeconfig", "used", "other"].map(|name| folder.path().join(name));
        let cluster = |name: &str, authority: &Path| json!({"name": name, "cluster": {"server": "https://192.0.2.1:6443", "certificate-authority": authority}});
        let file = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [cluster("l", &other), cluster("k", &used)],
            "contexts": [{"name": "c", "context": {"cluster": "k"}}, {"name": "d", "context": {"cluster": "l"}}],
        });
        fs::write(&path, file.to_string()).unwrap();
        for authority in [&used, &other] {
            fs::write(
                authority,
                "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            )
            .unwrap();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut files = Files::default();
        runtime.block_on(read(&path, None, &mut files)).unwrap();
        fs::remove_file(&other).unwrap();
        assert_eq!(files.changed(), None);
        fs::remove_file(&used).unwrap();
        assert_eq!(files.changed(), Some(used.display().to_string()));
    }

    #[test]
    fn errors_quote_nothing_of_the_file() {
        for text in [
            "users: [{name: u, user: {token: [secret]}}]",
            "users: [{name: u, user: {token: \"secret}}]",
            "users: [{name: u, user: {token: secret}}]\nclusters: 5",
            "users: [\n  token: secret",
        ] {
            let error = error_of(text);
            assert!(error.contains("line "), "{error}");
            assert!(!error.contains("secret") && !error.contains('\n'), "{error}");
            assert!(
                !error.contains("sequence") && !error.contains("scalar"),
                "{error}"
            );
        }
    }
}
