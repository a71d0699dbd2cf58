//! Names and versions of the tools, and starting them.

use std::path::Path;
use std::time::Duration;

use kernlink_base::Family;

use super::{Client, tool_message};
use crate::client::Iptables;
use crate::error::Error;
use crate::lock::LOCK_FILE;
use crate::runner::{Completion, Invocation};
use crate::save::Save;
use crate::variant::{DetectedVariants, Variant, VariantUsage, Version, tool};

impl Client {
    /// The version of a family's tools. It is read once.
    ///
    /// # Errors
    ///
    /// [`Error::is_unsupported`] if the tool does not exist; [`Error::Unexpected`] if it does not print its version.
    pub fn version(&mut self, family: Family) -> Result<Version, Error> {
        if let Some(version) = self.versions.get(&family) {
            return Ok(*version);
        }
        let mut version = self.query_version(family);
        if let (Err(error), Some(variant)) = (&version, self.variant)
            && error.is_unsupported()
            && self.unqualified.insert((variant, family))
        {
            let error = error.clone();
            version = match self.query_version(family) {
                Ok(version) if version.variant == variant => Ok(version),
                _ => {
                    self.unqualified.remove(&(variant, family));
                    Err(error)
                }
            };
        }
        let version = version?;
        self.versions.insert(family, version);
        Ok(version)
    }

    fn query_version(&mut self, family: Family) -> Result<Version, Error> {
        // iptables-restore supports --version since 1.6.2, iptables always did.
        let mut version = Err(Error::Unexpected {
            tool: tool(family).into(),
            text: String::new(),
        });
        for program in [self.program(family, "restore"), self.iptables_program(family)] {
            let completion = self.start(&program, vec!["--version".into()], Vec::new(), Duration::ZERO)?;
            let text = String::from_utf8_lossy(&completion.stdout).into_owned();
            version = text.parse().map_err(|_| Error::Unexpected {
                tool: format!("{program} --version"),
                text: tool_message::text(&completion),
            });
            if version.is_ok() {
                break;
            }
        }
        version
    }

    /// Reads the tables of both variants of a family.
    ///
    /// # Errors
    ///
    /// If neither can be read. A variant without tools or kernel modules is `None` in the result.
    pub fn detect_variants(&mut self, family: Family) -> Result<DetectedVariants, Error> {
        let configured = self.variant;
        let versions = std::mem::take(&mut self.versions);
        self.variant = None;
        let default = self.version(family).ok().map(|version| version.variant);
        let mut usage = |variant| {
            self.variant = Some(variant);
            self.versions.clear();
            let version = self.version(family)?;
            Ok(VariantUsage::of(
                version,
                &self.save(&Save::all(family).lenient())?,
            ))
        };
        let legacy: Result<VariantUsage, Error> = usage(Variant::Legacy);
        let nft: Result<VariantUsage, Error> = usage(Variant::Nft);
        self.variant = configured;
        self.versions = versions;
        match (legacy, nft) {
            (Err(error), Err(_)) => Err(error),
            (legacy, nft) => Ok(DetectedVariants {
                legacy: legacy.ok(),
                nft: nft.ok(),
                default,
            }),
        }
    }

    /// Whether a tool of the selected variant could not be started because it exists only under its name without `-legacy` or `-nft`, which
    /// is used from then on.
    pub(super) fn has_other_name(&mut self, family: Family, error: &Error) -> bool {
        let Some(variant) = self.variant else {
            return false;
        };
        let is_missing = error.is_unsupported() && matches!(error, Error::NotStarted { .. });
        // Several may be started before the first one is found missing.
        is_missing && (self.version(family).is_ok() && self.unqualified.contains(&(variant, family)))
    }

    /// `iptables-nft-restore` for the verb `restore`.
    pub(super) fn program(&self, family: Family, verb: &str) -> String {
        format!("{}{}-{verb}", tool(family), self.infix(family))
    }

    /// `iptables-nft`.
    pub(super) fn iptables_program(&self, family: Family) -> String {
        format!("{}{}", tool(family), self.infix(family))
    }

    fn infix(&self, family: Family) -> &'static str {
        match self.variant {
            Some(variant) if !self.unqualified.contains(&(variant, family)) => variant.infix(),
            _ => "",
        }
    }

    pub(super) fn lock_path(&self) -> &Path {
        self.lock_file.as_deref().unwrap_or(Path::new(LOCK_FILE))
    }

    pub(super) fn start(
        &mut self,
        program: &str,
        arguments: Vec<String>,
        stdin: Vec<u8>,
        wait: Duration,
    ) -> Result<Completion, Error> {
        let invocation = self.invocation(program, arguments, stdin, wait);
        self.runner.run(invocation)
    }

    /// A run of a tool that may wait so long for the lock.
    pub(super) fn invocation(
        &self,
        program: &str,
        arguments: Vec<String>,
        stdin: Vec<u8>,
        wait: Duration,
    ) -> Invocation {
        let mut environment = self.environment.clone();
        if let Some(path) = &self.lock_file {
            environment.insert("XTABLES_LOCKFILE".into(), path.to_string_lossy().into_owned());
        }
        Invocation {
            program: program.into(),
            arguments,
            environment,
            stdin,
            timeout: self.timeout.saturating_add(wait),
            output_limit: self.output_limit,
        }
    }

    /// The error if the tool failed because another process held the lock.
    pub(super) fn locked(&mut self, completion: &Completion) -> Option<Error> {
        tool_message::is_locked(&tool_message::text(completion)).then(|| {
            let path = self.lock_path().to_owned();
            Error::Locked {
                waited: self.wait,
                holder: self.runner.lock_holder(&path),
            }
        })
    }

    /// The value of `--wait`, at least 1. Without the option, and with 0, version 1.8.9 waits without a limit.
    pub(super) fn wait_seconds(&self) -> String {
        let seconds = self.wait.as_secs() + u64::from(self.wait.subsec_nanos() > 0);
        seconds.max(1).to_string()
    }
}
