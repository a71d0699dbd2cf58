//! `kernlink-agent preflight`: whether the agent can serve this node in the configured mode, and what would change. It changes no object of the
//! kernel. Reading may make the kernel load modules, as at the start of the agent.

mod document;
mod node;
mod page;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Instant;

use kernlink_base::{ErrorChain, Modules};
use kernlink_proxier::host::{KernelSysctls, Sysctls};
use kernlink_proxier::unreadable::{RULES_UNSUPPORTED, is_unreadable};
use kernlink_proxier::{DataPath, Proxier};
use kernlink_services::escape::excerpt_of;
use kernlink_services::event::Subject;
use kernlink_services::{Event, Family, Reason};
use serde_json::Value;

use self::document::{Check, Document, Found, Outcome, Plan, Readiness, Steps, Sysctl};
use self::node::check;
use crate::exit::Exit;
use crate::flags::Output;
use crate::modes::{self, Mode, Served, Task};
use crate::once::{self, Objects, Prepared};
use crate::print;
use crate::query::documents::VERSION;
use crate::query::socket::network_namespace;
use crate::settings::Settings;

/// The exit status if the agent cannot serve the node.
const NOT_READY: u8 = 20;
/// The exit status if it is not known whether it can.
const UNKNOWN: u8 = 21;
/// The number of events about objects.
const EVENTS: usize = 20;
/// The number of commands of a removal.
const COMMANDS: usize = 3;
/// The longest text of a command or event, in bytes.
const MAX_TEXT: usize = 300;

/// Examines the node and prints what it found.
#[must_use]
pub fn preflight(settings: &Settings, output: Output) -> ExitCode {
    let document = examine_node(settings);
    let text = match output {
        Output::Table => page::page(&document),
        Output::Json => match serde_json::to_string_pretty(&document) {
            Ok(text) => text,
            Err(error) => {
                print::error(&error);
                return Exit::Failure.into();
            }
        },
    };
    match print::line(text.trim_end()) {
        Exit::Success => {}
        failed => return failed.into(),
    }
    match document.readiness {
        Readiness::Ready => Exit::Success.into(),
        Readiness::NotReady => ExitCode::from(NOT_READY),
        Readiness::Unknown => ExitCode::from(UNKNOWN),
    }
}

/// Examines the node.
fn examine_node(settings: &Settings) -> Document {
    modes::run(&settings.config, Examine(settings))
}

/// Examines the node, for a program.
pub(crate) fn examine_as_json(settings: &Settings) -> Result<Value, serde_json::Error> {
    serde_json::to_value(examine_node(settings))
}

struct Examine<'a>(&'a Settings);

impl Task for Examine<'_> {
    type Output = Document;

    fn run<M: Served>(self, of_mode: &M::Settings) -> Document {
        let settings = self.0;
        let families = &settings.config.services().families;
        let status = std::fs::read_to_string("/proc/self/status").ok();
        let kernel_modules = Modules::of_running_kernel();
        let mut document = Document {
            version: VERSION,
            agent: env!("CARGO_PKG_VERSION").to_owned(),
            node: settings.config.services().node_name.to_string(),
            mode: M::MODE.to_string(),
            families: families.iter().map(ToString::to_string).collect(),
            kernel: kernel_modules.release().to_owned(),
            network_namespace: network_namespace(),
            ..Document::default()
        };
        document.checks = vec![node::agent(), node::kube_proxy()];
        let (modules, of_modules) = node::modules(M::MODULES, &kernel_modules);
        document.modules = modules;
        document.checks.push(of_modules);
        let mut missing_tools = BTreeMap::new();
        if M::MODE == Mode::Nftables {
            let (tool, of_tool) = node::nft();
            document.tools.push(tool);
            document.checks.push(of_tool);
        } else {
            let tools = node::iptables_tools(families.iter().copied());
            document.tools = tools.tools;
            document.checks.extend(tools.checks);
            missing_tools = tools.missing;
        }
        let serving = serving(settings, &mut document);
        let examined = examine::<M>(settings, of_mode, &mut document);
        let ports = bound_ports(settings, examined.as_ref());
        let privileges = node::privileges(M::MODE, &node::privileged(ports), status.as_deref());
        document.checks.insert(0, privileges);
        document.checks.extend(
            missing_tools
                .into_iter()
                .map(|(family, error)| missing_tool(family, &error, examined.as_ref())),
        );
        document.interrupted = interruptions(M::MODE, &serving);
        document.readiness = readiness(&document.checks);
        document
    }
}

/// The ports that the agent would bind, as far as they are known.
fn bound_ports(settings: &Settings, examined: Option<&Examined>) -> BTreeSet<u16> {
    let servers = [settings.healthz, settings.metrics].into_iter().flatten();
    let of_services = examined
        .into_iter()
        .flat_map(|examined| examined.ports.iter().copied());
    servers.map(|address| address.port()).chain(of_services).collect()
}

/// The worst result decides.
fn readiness(checks: &[Check]) -> Readiness {
    match checks.iter().map(|check| check.result).max() {
        Some(Outcome::Failure) => Readiness::NotReady,
        Some(Outcome::Unknown) | None => Readiness::Unknown,
        Some(Outcome::Ok | Outcome::Note) => Readiness::Ready,
    }
}

/// Finds which modes serve Services now, of kube-proxy or kernlink.
fn serving(settings: &Settings, document: &mut Document) -> BTreeSet<Mode> {
    let mut serving = BTreeSet::new();
    let all = match modes::retire_all(&settings.config) {
        Ok(all) => all,
        Err(error) => {
            let text = ErrorChain(&error).to_string();
            document.checks.push(check("served now", Outcome::Unknown, text));
            return serving;
        }
    };
    for (mode, mut retiring) in all {
        let serves = match retiring.is_serving() {
            Ok(serves) => Some(serves),
            Err(error) => {
                let text = format!("what {} serves cannot be read: {error}", retiring.mode());
                document.checks.push(check("served now", Outcome::Unknown, text));
                None
            }
        };
        if serves == Some(true) {
            serving.insert(mode);
        }
        document.found.push(Found {
            mode: mode.name(),
            title: retiring.mode(),
            serves,
            removal: None,
            first_commands: Vec::new(),
        });
    }
    serving
}

/// What the sources have, for checks.
struct Examined {
    /// The families that have frontends.
    families: BTreeSet<Family>,
    /// The ports that the mode binds, and the health-check node ports.
    ports: BTreeSet<u16>,
}

/// Reads the sources and the kernel, and makes a plan, as the agent does at its start. `None` if it is not known which Services there are.
fn examine<M: Served>(
    settings: &Settings,
    of_mode: &M::Settings,
    document: &mut Document,
) -> Option<Examined> {
    let objects = match once::objects(settings, Err) {
        Ok(objects) => Some(objects),
        Err(unread) => {
            let text = format!("the Services cannot be read: {unread}");
            document.checks.push(check("sources", Outcome::Failure, text));
            None
        }
    };
    let is_known = objects.is_some();
    // Without Services the kernel is read all the same.
    let objects = objects.unwrap_or_else(Objects::none);
    let Prepared {
        runtime: _runtime,
        mut proxier,
        events,
    } = match once::prepare::<M>(settings, of_mode, objects) {
        Ok(prepared) => prepared,
        Err(error) => {
            let text = ErrorChain(&*error).to_string();
            document.checks.push(check("kernel", Outcome::Failure, text));
            return None;
        }
    };
    let now = Instant::now();
    let plan = match proxier.plan(now) {
        Ok(plan) => plan,
        Err(error) => {
            let text = ErrorChain(&error).to_string();
            document.checks.push(check("kernel", Outcome::Failure, text));
            return None;
        }
    };
    let services = proxier.services();
    let families: BTreeSet<Family> = services
        .frontends()
        .map(|frontend| Family::of(frontend.key.address))
        .collect();
    let checks = [Family::Ipv4, Family::Ipv6].map(|family| services.health_checks(family));
    let checks = checks.iter().flatten().map(|check| check.port.get());
    let bound = plan
        .steps()
        .filter_map(|(_, step)| M::bound_port(&step.operation));
    let ports = checks.chain(bound).collect();
    let (of_host, of_objects): (Vec<&Event>, Vec<&Event>) = proxier
        .pending_events()
        .chain(&events)
        .partition(|event| event.subject == Subject::Host);
    let before = document.checks.len();
    document
        .checks
        .extend(of_host.into_iter().map(|event| host_check(event, &families)));
    if document.checks.len() == before {
        document.checks.push(check(
            "kernel",
            Outcome::Ok,
            "everything that the mode uses was read",
        ));
    }
    if is_known {
        let number = of_objects.len();
        let texts = of_objects
            .iter()
            .take(EVENTS)
            .map(|event| cut(&event.to_string()));
        document.events = texts.collect();
        if number > EVENTS {
            document.events.push(format!("{} more", number - EVENTS));
        }
        document.plan = Some(Plan {
            services: services.services().count(),
            frontends: services.frontends().count(),
            steps: plan.len(),
            by_kind: by_kind::<M>(plan.steps().map(|(_, step)| &step.key)),
        });
        add_removals(&mut proxier, now, &mut document.found);
    }
    let mut kernel = KernelSysctls::open();
    document.sysctls = plan
        .steps()
        .filter_map(|(_, step)| M::sysctl(&step.operation))
        .map(|sysctl| Sysctl {
            now: kernel
                .as_mut()
                .ok()
                .and_then(|kernel| kernel.read(&sysctl.name).ok().flatten()),
            name: sysctl.name.to_string(),
            then: sysctl.value.to_string(),
        })
        .collect();
    is_known.then_some(Examined { families, ports })
}

fn cut(text: &str) -> String {
    excerpt_of(text, MAX_TEXT).into_owned()
}

/// The number of steps for the objects of each kind.
fn by_kind<'a, M: DataPath>(keys: impl Iterator<Item = &'a M::Key>) -> Vec<Steps> {
    let mut counts = BTreeMap::new();
    for key in keys {
        let class = M::class(key);
        *counts.entry((class.kind, class.family)).or_default() += 1;
    }
    counts
        .into_iter()
        .map(|((kind, family), steps)| Steps {
            kind,
            family: family.map(|family| family.to_string()),
            steps,
        })
        .collect()
}

/// Adds what would be removed of each other mode.
fn add_removals<M: Served>(proxier: &mut Proxier<M>, now: Instant, found: &mut [Found]) {
    let planned = proxier.plan_handover(now);
    for found in found.iter_mut().filter(|found| found.mode != M::MODE.name()) {
        let steps = planned
            .iter()
            .filter(|mode| mode.mode == found.title)
            .flat_map(|mode| &mode.steps);
        let steps: Vec<String> = steps.map(|step| cut(step.summary())).collect();
        found.removal = Some(steps.len());
        found.first_commands = steps.into_iter().take(COMMANDS).collect();
    }
}

/// What an event about the kernel, or about a tool, means for the start of the agent.
fn host_check(event: &Event, families: &BTreeSet<Family>) -> Check {
    let is_unsupported = matches!(&event.reason, Reason::DataPath { code, .. } if *code == RULES_UNSUPPORTED);
    let text = event.reason.to_string();
    let is_needed = families.iter().any(|family| text.contains(&family.to_string()));
    let outcome = match (is_unreadable(event), is_unsupported) {
        (true, _) => Outcome::Unknown,
        (false, true) if is_needed => Outcome::Failure,
        (false, _) => Outcome::Note,
    };
    check("kernel", outcome, text)
}

/// What a family without tools means: nothing, if no Service has it.
fn missing_tool(family: Family, error: &str, examined: Option<&Examined>) -> Check {
    let (outcome, consequence) = match examined {
        None => (Outcome::Unknown, "whether a Service needs them is not known"),
        Some(examined) if examined.families.contains(&family) => {
            (Outcome::Failure, "Services of this family would not be served")
        }
        Some(_) => (
            Outcome::Note,
            "no Service has this family; --ip-families names those that are served",
        ),
    };
    check(
        "iptables",
        outcome,
        format!("no iptables tools for {family}: {error}; {consequence}"),
    )
}

/// What ends or may be lost when the agent starts in a mode on a node that these modes serve.
fn interruptions(mode: Mode, serving: &BTreeSet<Mode>) -> Vec<String> {
    let mut texts = Vec::new();
    if serving.contains(&Mode::Userspace) {
        texts.push(
            "connections and UDP flows that a userspace proxy copies: they end with its process, and new ones are refused until the agent \
             serves"
                .to_owned(),
        );
    }
    if serving.contains(&Mode::Ipvs) && mode != Mode::Ipvs {
        texts.push(
            "perhaps an answer to a client that uses a source port again within two minutes, while IPVS has the previous connection from it"
                .to_owned(),
        );
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_result_decides() {
        let of = |results: &[Outcome]| {
            let checks: Vec<Check> = results.iter().map(|result| check("x", *result, "")).collect();
            readiness(&checks)
        };
        use Outcome::{Failure, Note, Ok, Unknown};
        assert_eq!(of(&[Ok, Note]), Readiness::Ready);
        assert_eq!(of(&[Ok, Unknown, Note]), Readiness::Unknown);
        assert_eq!(of(&[Unknown, Failure, Ok]), Readiness::NotReady);
        assert_eq!(of(&[]), Readiness::Unknown);
    }

    #[test]
    fn a_family_without_tools_matters_if_a_service_has_it() {
        let with = |families: &[Family]| Examined {
            families: families.iter().copied().collect(),
            ports: BTreeSet::new(),
        };
        let of = |examined: Option<&Examined>| missing_tool(Family::Ipv6, "not found", examined).result;
        assert_eq!(of(Some(&with(&[Family::Ipv4]))), Outcome::Note);
        assert_eq!(of(Some(&with(&[Family::Ipv4, Family::Ipv6]))), Outcome::Failure);
        assert_eq!(of(None), Outcome::Unknown);
    }

    #[test]
    fn only_userspace_and_ipvs_mode_have_what_ends() {
        for (mode, serving, expected) in [
            (Mode::Nftables, vec![Mode::Iptables], 0),
            (Mode::Nftables, vec![Mode::Ipvs], 1),
            (Mode::Ipvs, vec![Mode::Ipvs], 0),
            (Mode::Iptables, vec![Mode::Userspace, Mode::Ipvs], 2),
            (Mode::Userspace, vec![Mode::Userspace], 1),
        ] {
            let texts = interruptions(mode, &serving.iter().copied().collect());
            assert_eq!(texts.len(), expected, "{mode} {serving:?}");
        }
    }

    #[test]
    fn tables_that_are_not_supported_matter_if_a_service_has_the_family() {
        let event = Event::host(RULES_UNSUPPORTED, "the kernel has no IPv6 tables");
        let of = |families: &[Family]| host_check(&event, &families.iter().copied().collect()).result;
        assert_eq!(of(&[Family::Ipv4]), Outcome::Note);
        assert_eq!(of(&[Family::Ipv6]), Outcome::Failure);
        let unread = Event::host(kernlink_proxier::unreadable::RULES_UNREADABLE, "no");
        assert_eq!(host_check(&unread, &BTreeSet::new()).result, Outcome::Unknown);
    }
}
