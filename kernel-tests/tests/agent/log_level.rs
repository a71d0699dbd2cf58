//! Changes of the level of the log of the running agent.

use std::process::{Command, Output};

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::programs;
use serde_json::Value;

use crate::support::{Agent, Manifests, service, text, wait_for_socket};

/// What the agent logs of each change of the folder at level debug.
const DEBUG_LINE: &str = "the folder was read";

/// Runs `log-level` with the default socket of the calling thread's namespace.
fn log_level(arguments: &[&str]) -> Output {
    programs::agent()
        .arg("log-level")
        .args(arguments)
        .output()
        .unwrap()
}

fn answer(arguments: &[&str]) -> Value {
    let output = log_level(&[arguments, &["--output", "json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output)))
}

#[test]
fn the_level_of_the_log_changes_for_a_time_and_is_changed_by_root_only() {
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    NetNs::new().run(|| {
        let arguments = ["--proxy-mode", "nftables", "--v", "2", "--socket-group", "65534"];
        let agent = Agent::start(&manifests.0, &arguments);
        agent.wait_for(" synced done=", 1);
        wait_for_socket();
        let synced = || agent.log().matches(" synced done=").count();
        let page = text(&log_level(&[]));
        let page: Vec<&str> = page.split_whitespace().collect();
        assert_eq!(page.join(" "), "level info, until it is changed configured info");
        assert!(!agent.log().contains(DEBUG_LINE), "{}", agent.log());

        let change = answer(&["debug", "--for", "1h"]);
        assert_eq!(
            (&change["filter"], &change["configured"]),
            (&"debug".into(), &"info".into()),
            "{change}"
        );
        assert!(change["secondsLeft"].as_u64().unwrap() <= 3600, "{change}");
        manifests.replace("b.yaml", &service("b", "10.96.0.2", &[0]));
        agent.wait_for(DEBUG_LINE, 1);

        // Of the part of the program that logs it.
        let change = answer(&["info,kernlink_agent::agent=debug"]);
        assert_eq!(change["filter"], "info,kernlink_agent::agent=debug", "{change}");
        assert_eq!(change["secondsLeft"], Value::Null, "{change}");
        manifests.replace("c.yaml", &service("c", "10.96.0.3", &[0]));
        agent.wait_for(DEBUG_LINE, 2);

        let as_member = |arguments: &[&str]| {
            let program = programs::agent();
            let command: &mut Command = &mut programs::command("setpriv");
            command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
            command
                .arg(program.get_program())
                .arg("log-level")
                .args(arguments)
                .output()
                .unwrap()
        };
        let read = as_member(&[]);
        assert!(
            read.status.success(),
            "members of the group may ask: {}",
            text(&read)
        );
        let refused = as_member(&["trace"]);
        assert_eq!(refused.status.code(), Some(1), "{}", text(&refused));
        let reason = "only root and the user of the agent may change the level of the log";
        assert!(text(&refused).contains(reason), "{}", text(&refused));

        answer(&["debug", "--for", "1s"]);
        agent.wait_for("the log has the configured level again", 1);
        assert_eq!(answer(&[])["filter"], "info");
        let (lines, syncs) = (agent.log().matches(DEBUG_LINE).count(), synced());
        manifests.replace("d.yaml", &service("d", "10.96.0.4", &[0]));
        agent.wait_for(" synced done=", syncs + 1);
        assert_eq!(agent.log().matches(DEBUG_LINE).count(), lines, "{}", agent.log());
    });
}
