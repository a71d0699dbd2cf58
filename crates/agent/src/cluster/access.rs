//! Where the API server is, and the credentials.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;

use jiff::Timestamp;
use kernlink_base::ErrorChain;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};

use super::plugin;

/// Where the API server is, and the credentials. With neither a file nor an address: those of the pod, from its environment and the
/// files of its service account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The kubeconfig file; its current context is used.
    pub kubeconfig: Option<PathBuf>,
    /// The address of the server, which replaces that of the file.
    pub master: Option<String>,
}

/// What was read.
#[derive(Debug)]
pub(super) struct Credentials {
    pub(super) config: Config,
    /// Until when a plugin's credentials are valid. `None`: without a limit.
    pub(super) expiry: Option<Timestamp>,
}

impl Access {
    /// Reads the files, and runs a credential plugin.
    ///
    /// # Errors
    /// What cannot be read, with the reason.
    pub(super) async fn read(&self) -> Result<Credentials, String> {
        let mut config = self.config().await?;
        let expiry = plugin::log_in(&mut config.auth_info, plugin::LIMIT).await?;
        Ok(Credentials { config, expiry })
    }

    async fn config(&self) -> Result<Config, String> {
        let Some(path) = &self.kubeconfig else {
            let Some(master) = &self.master else {
                return Config::incluster().map_err(|error| {
                    let error = describe(&error);
                    format!("neither --kubeconfig nor --master is given, and this is not a pod with a service account: {error}")
                });
            };
            let url = master
                .parse()
                .map_err(|error| format!("--master: {master:?} is not a URL: {error}"))?;
            return Ok(Config::new(url));
        };
        let failed = |error: &(dyn Error + 'static)| format!("{}: {}", path.display(), describe(error));
        let mut kubeconfig = Kubeconfig::read_from(path).map_err(|error| failed(&error))?;
        if let Some(master) = &self.master {
            for cluster in kubeconfig
                .clusters
                .iter_mut()
                .filter_map(|named| named.cluster.as_mut())
            {
                cluster.server = Some(master.clone());
            }
        }
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        config.map_err(|error| failed(&error))
    }
}

impl fmt::Display for Access {
    /// The file and the address, or `this pod`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.kubeconfig, &self.master) {
            (Some(path), None) => write!(f, "{}", path.display()),
            (Some(path), Some(master)) => write!(f, "{master} ({})", path.display()),
            (None, Some(master)) => f.write_str(master),
            (None, None) => f.write_str("that of this pod"),
        }
    }
}

/// An error of the client library. Its messages contain their causes already.
pub(super) fn describe(error: &(dyn Error + 'static)) -> String {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Service(cause)) => describe_chain(&**cause),
        Some(kube::Error::HyperError(cause)) => describe_chain(cause),
        _ => error.to_string(),
    }
}

/// An error of the HTTP library, whose messages do not contain their causes.
pub(super) fn describe_chain(error: &(dyn Error + 'static)) -> String {
    ErrorChain(error).to_string()
}
