//! The agent: what every program needs that keeps the kernel of a node in step with sources of Services.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`flags`], [`settings`] | the command line and kube-proxy's configuration file |
//! | [`folder`], [`cluster`] | the sources: a folder of manifests, an API server |
//! | [`agent`] | source, schedule, kernel and servers until a signal ends the process |
//! | [`modes`] | the choice of the mode: its data path, and the other modes, which retire |
//! | [`once`] | a single sync, or the plan of one |
//! | [`preflight`] | whether this node can be served, and what would change |
//! | `query` | answers to questions about the running agent, on a Unix socket |
//! | `commands` | the command line, and the subcommands that ask |
//! | [`http`] | health, and health-check node ports |
//! | [`log`], [`service_manager`] | the log, and systemd |
//! | [`version`] | the version, and the commit it was built from |
//!
//! The program `kernlink-agent` only calls [`main`]. `docs/agent.md` describes its use.

pub mod agent;
pub mod cleanup;
pub mod cluster;
mod cluster_objects;
mod commands;
pub mod configuration_file;
pub mod exit;
pub mod flags;
pub mod folder;
pub mod http;
mod inbox;
mod kernel_events;
mod lock;
pub mod log;
mod message;
pub mod modes;
pub mod once;
mod pending;
pub mod preflight;
pub mod print;
mod process;
mod query;
mod report;
mod reporter;
pub mod service_manager;
pub mod settings;
mod signals;
mod stale;
mod stamp;
mod state;
pub mod version;

use std::ffi::OsString;
use std::process::ExitCode;

use self::commands::Verb;
pub use self::exit::Exit;
use self::flags::{Action, Flags};
use self::modes::Mode;
use self::settings::Settings;

/// Runs the agent with the arguments of a command line, without the name of the program.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    match commands::parse(arguments) {
        Ok(Verb::Run(line)) => run(&(*line).into()),
        Ok(Verb::Preflight(line)) => run(&(*line).into()),
        Ok(Verb::Ask(command)) => command.run(),
        Ok(Verb::Completions { shell }) => commands::completions(shell).into(),
        Err(exit) => exit.into(),
    }
}

fn run(flags: &Flags) -> ExitCode {
    log::start(
        flags.log_format,
        log::level(flags.verbosity.unwrap_or_default().into()),
    );
    let settings = match Settings::new(flags) {
        Ok(settings) => settings,
        Err(error) => {
            print::error(&error);
            return Exit::from(&error).into();
        }
    };
    log::set_level(log::level(settings.file.log_verbosity));
    for warning in &settings.file.warnings {
        tracing::warn!(field = warning.field, "{}", warning.reason);
    }
    let mode = settings.config.mode();
    if flags.first_services.is_some() && mode != Mode::Ipvs {
        tracing::warn!("--first-services has no effect in {mode} mode");
    }
    let exit = match flags.action {
        Action::Preflight => return preflight::preflight(&settings, flags.output),
        Action::PrintConfig => print::line(&print::configuration(&settings.file)),
        Action::DryRun => once::dry_run(&settings),
        Action::Once => once::once(&settings),
        Action::InitOnly => once::init_only(&settings),
        Action::Cleanup => cleanup::cleanup(&settings),
        Action::PlanCleanup => cleanup::plan_cleanup(&settings),
        Action::HandBack => cleanup::hand_back(&settings),
        Action::PlanHandBack => cleanup::plan_hand_back(&settings),
        _ => agent::run(settings),
    };
    exit.into()
}
