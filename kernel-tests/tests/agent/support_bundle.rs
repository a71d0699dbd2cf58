//! `kernlink-agent support-bundle`: what is in the archive, with and without an agent, and that no secret is.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::mem;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::mpsc;
use std::thread;

use flate2::read::GzDecoder;
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::traffic::{Network, Protocol};
use kernlink_kernel_tests::{programs, requires, requires_ipvs_mode, tools, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::api_objects::{api_service, api_slice};
use crate::api_server::ApiServer;
use crate::cluster::{ADDRESS, api_node};
use crate::iptables_mode::choose;
use crate::support::{
    Agent, Manifests, api_command, service, text, unless_in_sync, wait_for_answer, wait_for_socket,
};

/// The files of an archive by their paths, without the folder that all are in.
type Files = BTreeMap<String, String>;

fn read(archive: &Path) -> Files {
    let mut archive = tar::Archive::new(GzDecoder::new(File::open(archive).unwrap()));
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().to_str().unwrap().to_owned();
        assert_eq!(entry.header().mode().unwrap(), 0o600, "{path}");
        let path = path.strip_prefix("kernlink-support/").unwrap().to_owned();
        let mut content = String::new();
        entry.read_to_string(&mut content).unwrap();
        (path, content)
    });
    entries.collect()
}

/// Asks for an archive, in the namespace of the calling thread. An emulated machine may need long for the report of preflight.
fn run(archive: &Path, arguments: &[&str]) -> Output {
    let mut command = programs::agent();
    command
        .args(["support-bundle", "--preflight-timeout", "1h"])
        .arg("--output")
        .arg(archive)
        .args(arguments);
    command.output().unwrap()
}

/// The files of an archive that is asked for, again if the agent could not answer because a sync took longer than an answer may.
#[track_caller]
fn collect(archive: &Path, arguments: &[&str]) -> Files {
    wait::until(|| {
        let output = run(archive, arguments);
        assert!(output.status.success(), "{}", text(&output));
        assert_eq!(fs::metadata(archive).unwrap().permissions().mode() & 0o777, 0o600);
        unless_in_sync(output).inspect_err(|_| fs::remove_file(archive).unwrap())?;
        Ok::<_, String>(read(archive))
    })
}

/// What `contents.json` has of a file: its state, and the reason.
fn state(files: &Files, file: &str) -> (String, Value) {
    let contents: Value = serde_json::from_str(&files["contents.json"]).unwrap();
    let entries = contents["files"].as_array().unwrap();
    let entry = entries.iter().find(|entry| entry["file"] == file);
    let entry = entry.unwrap_or_else(|| panic!("{file} is not in {contents:#}"));
    (
        entry["state"].as_str().unwrap().to_owned(),
        entry["reason"].clone(),
    )
}

/// A file that must not be missing.
#[track_caller]
fn file<'a>(files: &'a Files, name: &str) -> &'a str {
    match files.get(name) {
        Some(text) => text,
        None => panic!("{name} is missing: {:?}", state(files, name)),
    }
}

/// The text in base64 as a part of any longer text: without the characters that depend on what is next to it.
fn in_base64(text: &str) -> [String; 3] {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    [0, 1, 2].map(|before: usize| {
        let bytes: Vec<u8> = std::iter::repeat_n(0, before).chain(text.bytes()).collect();
        let bits = bytes.chunks_exact(3).flat_map(|three| {
            let number = u32::from(three[0]) << 16 | u32::from(three[1]) << 8 | u32::from(three[2]);
            [18, 12, 6, 0].map(|shift| char::from(DIGITS[(number >> shift & 63) as usize]))
        });
        bits.skip(if before == 0 { 0 } else { 4 }).collect()
    })
}

#[test]
fn base64_of_a_part_is_that_of_the_whole() {
    // printf 'xxplanted-secret' | base64, and with one and no letter before it.
    for whole in [
        "eHhwbGFudGVkLXNlY3JldA==",
        "eHBsYW50ZWQtc2VjcmV0",
        "cGxhbnRlZC1zZWNyZXQ=",
    ] {
        let parts = in_base64("planted-secret");
        assert!(
            parts.iter().any(|part| whole.contains(part.as_str())),
            "{whole}: {parts:?}"
        );
    }
}

/// None of these is in any path or file, as it is or in base64.
#[track_caller]
fn assert_without(files: &Files, secrets: &[&str]) {
    for (path, content) in files {
        for secret in secrets {
            let [first, second, third] = in_base64(secret);
            for form in [*secret, &first, &second, &third] {
                assert!(!path.contains(form), "{secret} is in the path {path}");
                if let Some(at) = content.find(form) {
                    let begin = content.floor_char_boundary(at.saturating_sub(200));
                    panic!("{secret} is in {path}: {}", &content[begin..at + form.len()]);
                }
            }
        }
    }
}

/// What an agent answers whose sync takes longer than an answer may.
const SYNCING: &str =
    "a sync is in progress, and has taken longer than an answer may; ask again when it has ended";

const TOKEN: &str = "planted-token-wyfv81";
const KEY: &str = "planted+key/MIIEowIBAAKCAQEA7bq";
const PASSWORD: &str = "planted-password-0cQa";
const ENVIRONMENT: &str = "planted-environment-Zr3";
const ANNOTATION: &str = "planted-annotation-q9Lx";

#[test]
fn an_archive_has_what_a_maintainer_needs_and_no_secret() {
    requires!(Feature::Iptables);
    let network = Network::new(1);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let files = Manifests::new();
    let kubeconfig = files.0.join("kubeconfig");
    let folder = files.0.display();
    // It prints the token. With the file `fails` it quotes its environment, as some programs do.
    let script = format!(
        "#!/bin/sh
cd {folder}
[ -e fails ] && echo \"denied: $PLANTED\" >&2 && exit 1
echo '{{\"apiVersion\": \"client.authentication.k8s.io/v1\", \"kind\": \"ExecCredential\", \"status\": {{\"token\": \"{TOKEN}\"}}}}'
"
    );
    let plugin = files.0.join("login");
    fs::write(&plugin, script).unwrap();
    fs::set_permissions(&plugin, Permissions::from_mode(0o700)).unwrap();
    let archive = files.0.join("a.tar.gz");
    network.node.run(|| {
        choose("iptables-nft");
        let server = ApiServer::start(ADDRESS, false);
        server.set_token(TOKEN);
        let user = json!({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": "./login", "interactiveMode": "Never",
            "env": [{"name": "PLANTED", "value": ENVIRONMENT}],
        }});
        let mut config: Value = serde_json::from_str(&server.kubeconfig_of(&user)).unwrap();
        let others = [
            json!({"name": "token", "user": {"token": TOKEN}}),
            json!({"name": "key", "user": {"client-key-data": in_base64(&format!("-----BEGIN KEY-----\n{KEY}\n"))[0]}}),
            json!({"name": "password", "user": {"username": "u", "password": PASSWORD}}),
        ];
        config["users"].as_array_mut().unwrap().extend(others);
        files.replace("kubeconfig", &config.to_string());
        server.apply(api_node(&["192.0.2.1"]));
        let mut object = api_service("a", "10.96.0.1");
        object["metadata"]["annotations"] = json!({
            "kernlink.io/affinity-mask": ANNOTATION,
            "kubectl.kubernetes.io/last-applied-configuration": format!("{{\"a\": \"{ANNOTATION}\"}}"),
        });
        server.apply(object);
        server.apply(api_slice("a", 0));
        for rule in ["-N FOREIGN", "-A FOREIGN -j ACCEPT", "-A PREROUTING -j FOREIGN"] {
            let arguments: Vec<&str> = ["-w", "-t", "nat"].into_iter().chain(rule.split(' ')).collect();
            tools::run("iptables", &arguments).unwrap();
        }
        let agent = Agent::spawn(api_command(&kubeconfig, &[]));
        wait_for_answer(&network, "10.96.0.1", "pod0");
        agent.wait_for(" synced done=", 1);
        wait_for_socket();
        // Otherwise nothing would be removed of the events.
        let status = programs::agent().args(["status", "--output", "json"]).output().unwrap();
        assert!(text(&status).contains(ANNOTATION), "{}", text(&status));

        let found = collect(&archive, &[]);
        let secrets = [TOKEN, KEY, PASSWORD, ENVIRONMENT, ANNOTATION];
        assert_without(&found, &secrets);
        for (file, expected) in [
            ("version.txt", "running agent: 0."),
            ("status.json", "\"mode\": \"iptables\""),
            ("services.json", "shop/a"),
            ("events.json", "affinity-mask]: invalid value \\\"[removed]\\\""),
            ("configuration.json", "KubeProxyConfiguration"),
            ("flags.json", "\"hostname-override\": \"node-a\""),
            ("metrics.txt", "\nkernlink_build_info{"),
            ("preflight.json", "\"readiness\": \"ready\""),
            ("node/kernel.txt", "kernel: "),
            ("node/sysctls.txt", "net.ipv4.ip_forward = "),
            ("node/modules.txt", "nf_conntrack "),
            ("node/tools.txt", "iptables: iptables v1."),
            ("kernel/iptables.txt", "--comment \"shop/a cluster IP\""),
            ("kernel/iptables.txt", "-A PREROUTING -m comment"),
        ] {
            let text = self::file(&found, file);
            assert!(text.contains(expected), "{file}: {expected}: {text}");
            assert_eq!(state(&found, file), ("complete".to_owned(), Value::Null));
        }
        assert!(!file(&found, "kernel/iptables.txt").contains("FOREIGN"), "{}", file(&found, "kernel/iptables.txt"));

        // It replaces no file, except if asked.
        let again = run(&archive, &[]);
        assert_eq!(again.status.code(), Some(1), "{}", text(&again));
        assert!(text(&again).contains(" exists; --overwrite replaces it"), "{}", text(&again));
        files.replace("fails", "");
        let found = collect(&archive, &["--overwrite"]);
        let report = file(&found, "preflight.json");
        assert!(report.contains("failed (exit status: 1)"), "{report}");
        assert_without(&found, &secrets);
        drop(agent);
    });
}

#[test]
fn an_archive_names_what_is_missing_without_an_agent() {
    requires!(Feature::Iptables);
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    let folder = manifests.0.to_str().unwrap();
    NetNs::new().run(|| {
        choose("iptables-nft");
        let agent = Agent::start(&manifests.0, &["--proxy-mode", "iptables"]);
        agent.wait_for(" synced done=", 1);
        drop(agent);
        let archive = manifests.0.join("archive");
        let output = run(&archive, &[]);
        assert!(output.status.success(), "{}", text(&output));
        let named = "missing: status.json: no agent listens on /run/kernlink/agent-";
        assert!(text(&output).contains(named), "{}", text(&output));
        let found = read(&archive);
        for file in [
            "status.json",
            "services.json",
            "events.json",
            "flags.json",
            "metrics.txt",
            "configuration.json",
            "preflight.json",
        ] {
            assert!(!found.contains_key(file), "{file}");
            let (state, reason) = state(&found, file);
            assert_eq!(state, "missing", "{file}");
            assert!(!reason.as_str().unwrap().is_empty(), "{file}");
        }
        assert!(file(&found, "version.txt").contains("running agent: it does not answer"));
        assert!(file(&found, "kernel/iptables.txt").contains("KUBE-SVC-"));

        // With its flags.
        let flags = [
            "--overwrite",
            "--",
            "--watch",
            folder,
            "--node-name",
            "node-a",
            "--proxy-mode",
            "nftables",
        ];
        let found = collect(&archive, &flags);
        assert!(file(&found, "configuration.json").contains("\"mode\": \"nftables\""));
        let report = file(&found, "preflight.json");
        assert!(report.contains("\"readiness\": "), "{report}");
        let none = collect(&archive, &[&["--without-preflight"], &flags[..]].concat());
        assert_eq!(state(&none, "preflight.json").0, "missing");
        // Nothing is written if they are invalid.
        fs::remove_file(&archive).unwrap();
        let invalid = run(&archive, &["--", "--wach", folder]);
        assert_eq!(invalid.status.code(), Some(2), "{}", text(&invalid));
        assert!(!archive.exists());
    });
}

#[test]
fn an_archive_that_a_signal_ends_does_not_stay() {
    let manifests = Manifests::new();
    let folder = manifests.0.join("folder");
    fs::create_dir(&folder).unwrap();
    let archive = folder.join("archive");
    let names = || -> Vec<String> {
        let entries = fs::read_dir(&folder).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    };
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        for before in [None, Some("before")] {
            // It takes the questions, and answers none.
            let socket = manifests.0.join(format!("socket-{signal}-{}", before.is_some()));
            let _listener = UnixListener::bind(&socket).unwrap();
            // Under `nohup` the signal is ignored, also by the agent.
            let mut command = programs::command("env");
            command
                .arg("--default-signal=HUP")
                .arg(programs::agent().get_program());
            command
                .args(["support-bundle", "--without-preflight", "--socket"])
                .arg(&socket);
            command.arg("--output").arg(&archive).stderr(Stdio::piped());
            if let Some(before) = before {
                fs::write(&archive, before).unwrap();
                command.arg("--overwrite");
            }
            let mut child = command.spawn().unwrap();
            let written = wait::until(|| {
                assert_eq!(child.try_wait().unwrap(), None);
                let written = names().into_iter().find(|name| name != "archive");
                written.ok_or("no file was made")
            });
            assert!(written.ends_with(".partial"), "{written}");
            let metadata = fs::metadata(folder.join(&written)).unwrap();
            assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
            assert_eq!(archive.exists(), before.is_some());
            kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
            let output = child.wait_with_output().unwrap();
            assert_eq!(output.status.code(), Some(1), "{}", text(&output));
            let named = format!("{signal}: the archive was not complete, and was removed");
            assert!(text(&output).contains(&named), "{}", text(&output));
            assert_eq!(fs::read_to_string(&archive).ok().as_deref(), before);
            let left: Vec<String> = names().into_iter().filter(|name| name != "archive").collect();
            assert!(left.is_empty(), "{left:?}");
            let _was_there = fs::remove_file(&archive);
        }
    }
}

#[test]
fn an_agent_in_a_sync_is_asked_again() {
    let folder = Manifests::new();
    let socket = folder.0.join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let (sender, requests) = mpsc::channel();
    thread::spawn(move || {
        let mut was_syncing = false;
        for stream in listener.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let request = lines.next().unwrap_or_default();
            // The rest of its head.
            lines.find(String::is_empty);
            let (status, body) = match request.contains("/v1/services") {
                true if !mem::replace(&mut was_syncing, true) => {
                    (503, json!({"version": 1, "error": SYNCING}))
                }
                true => (200, json!({"services": "after the sync"})),
                false => (404, json!({"version": 1, "error": "not found"})),
            };
            let body = body.to_string();
            let length = body.len();
            let _ = sender.send(request);
            write!(
                &stream,
                "HTTP/1.1 {status} Status\r\nContent-Length: {length}\r\n\r\n{body}"
            )
            .unwrap();
        }
    });
    let archive = folder.0.join("archive");
    let output = run(
        &archive,
        &["--without-preflight", "--socket", socket.to_str().unwrap()],
    );
    assert!(output.status.success(), "{}", text(&output));
    let found = read(&archive);
    assert!(file(&found, "services.json").contains("after the sync"));
    let of_services = requests
        .try_iter()
        .filter(|request| request.contains("/v1/services"));
    assert_eq!(of_services.count(), 2);
    assert_eq!(
        state(&found, "status.json"),
        ("missing".to_owned(), json!("not found"))
    );
}

#[test]
fn an_archive_has_the_tables_of_nftables_mode_and_no_others() {
    requires!(Feature::Iptables);
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    NetNs::new().run(|| {
        choose("iptables-nft");
        tools::run("nft", &["add", "table", "ip", "foreign"]).unwrap();
        let agent = Agent::start(
            &manifests.0,
            &["--proxy-mode", "nftables", "--ip-families", "ipv4"],
        );
        agent.wait_for(" synced done=", 1);
        wait_for_socket();
        let archive = manifests.0.join("archive");
        let found = collect(&archive, &["--without-preflight"]);
        let tables = file(&found, "kernel/nftables.txt");
        for expected in ["table ip kernlink {", "10.96.0.1 . tcp . 80"] {
            assert!(tables.contains(expected), "{expected}: {tables}");
        }
        assert!(!tables.contains("foreign"), "{tables}");
        // To standard output, as from a pod.
        let output = programs::agent()
            .args(["support-bundle", "--without-preflight", "--output", "-"])
            .output()
            .unwrap();
        assert!(output.status.success());
        let piped = manifests.0.join("piped");
        fs::write(&piped, output.stdout).unwrap();
        let mut tar = tar::Archive::new(GzDecoder::new(File::open(&piped).unwrap()));
        assert_eq!(tar.entries().unwrap().count(), found.len());
        drop(agent);
    });
}

#[test]
fn an_archive_has_the_virtual_servers_of_ipvs_mode_and_no_others() {
    requires_ipvs_mode!();
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    NetNs::new().run(|| {
        tools::run("ipvsadm", &["-A", "-t", "203.0.113.7:80", "-s", "rr"]).unwrap();
        tools::run("ipset", &["create", "FOREIGN", "hash:ip"]).unwrap();
        let agent = Agent::start(&manifests.0, &[]);
        wait::until(|| match tools::ipvsadm_save() {
            servers if servers.contains("10.96.0.1:80") => Ok(()),
            servers => Err(servers),
        });
        agent.wait_for(" synced done=", 1);
        let found = collect(&manifests.0.join("archive"), &["--without-preflight"]);
        let servers = &found["kernel/ipvs.txt"];
        assert!(
            servers.starts_with("-A -t 10.96.0.1:80 -s rr\n-a -t 10.96.0.1:80 -r "),
            "{servers}"
        );
        assert!(!servers.contains("203.0.113.7"), "{servers}");
        let sets = &found["kernel/ipset.txt"];
        assert!(
            sets.contains("create KUBE-CLUSTER-IP ") && sets.contains("create KERNLINK-VS "),
            "{sets}"
        );
        assert!(!sets.contains("FOREIGN"), "{sets}");
        assert!(found["kernel/addresses.txt"].contains("kube-ipvs0 10.96.0.1"));
        drop(agent);
    });
}
