//! A folder that changes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use kernlink_services::ObjectChange;
use tempfile::TempDir;

use super::*;

/// The manifest of a Service.
fn service(name: &str, address: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{clusterIP: {address}, ports: [{{port: 80}}]}}\n"
    )
}

/// The changes as text, such as `+a 10.0.0.1` and `-a`.
fn text(reading: &Reading) -> Vec<String> {
    let changes = reading.changes.iter();
    changes
        .map(|change| match change {
            Change::Services(ObjectChange::Upsert(service)) => {
                format!("+{} {}", service.name.name, service.cluster_ip)
            }
            Change::Services(ObjectChange::Delete(name)) => format!("-{}", name.name),
            other => format!("{other:?}"),
        })
        .collect()
}

fn problems(reading: &Reading) -> String {
    let lines: Vec<String> = reading.problems.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

fn folder(files: &[(&str, &str)]) -> (TempDir, Folder) {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let folder = Folder::new(dir.path());
    (dir, folder)
}

#[test]
fn manifests_are_read_and_other_files_are_not() {
    let (dir, mut folder) = folder(&[
        ("b.yaml", &service("b", "10.0.0.2")),
        ("a.yml", &service("a", "10.0.0.1")),
        (
            "c.json",
            r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "c"}, "spec": {"clusterIP": "10.0.0.3"}}"#,
        ),
        (".d.yaml", &service("d", "10.0.0.4")),
        ("e.yaml~", &service("e", "10.0.0.5")),
        ("f.txt", "text"),
    ]);
    fs::create_dir(dir.path().join("g.yaml")).unwrap();
    let reading = folder.read();
    assert_eq!(text(&reading), ["+a 10.0.0.1", "+b 10.0.0.2", "+c 10.0.0.3"]);
    assert_eq!(
        (reading.is_complete, reading.files, reading.objects),
        (true, 3, 3)
    );
    assert!(reading.problems.is_empty(), "{:?}", reading.problems);
    // Nothing changed, and one changed.
    assert!(folder.read().changes.is_empty());
    fs::write(dir.path().join("b.yaml"), service("b", "10.0.0.20")).unwrap();
    assert_eq!(text(&folder.read()), ["+b 10.0.0.20"]);
    fs::remove_file(dir.path().join("a.yml")).unwrap();
    assert_eq!(text(&folder.read()), ["-a"]);
}

#[test]
fn a_broken_file_keeps_its_objects_and_is_reported_until_it_is_repaired() {
    let (dir, mut folder) = folder(&[
        ("a.yaml", &(service("a", "10.0.0.1") + &service("b", "10.0.0.2"))),
        ("c.yaml", &service("c", "10.0.0.3")),
    ]);
    folder.read();
    for broken in ["kind: [", "", " \n", "\u{0}", "apiVersion: v1\nkind: Serv"] {
        fs::write(dir.path().join("a.yaml"), broken).unwrap();
        fs::write(
            dir.path().join("c.yaml"),
            service("c", &format!("10.0.1.{}", broken.len() + 1)),
        )
        .unwrap();
        let reading = folder.read();
        assert_eq!(text(&reading).len(), 1, "{broken:?}: only `c` changed");
        assert!(
            problems(&reading).starts_with("a.yaml: "),
            "{}",
            problems(&reading)
        );
        assert!(reading.is_complete, "all objects are known");
        // It is still broken, and still reported.
        assert!(!folder.read().problems.is_empty());
    }
    // `b` is deleted by the repaired file.
    fs::write(dir.path().join("a.yaml"), service("a", "10.0.0.1")).unwrap();
    let reading = folder.read();
    assert_eq!(text(&reading), ["-b"]);
    assert!(reading.problems.is_empty());
}

#[test]
fn a_file_that_is_not_utf_8_or_not_a_file_keeps_its_objects() {
    let (dir, mut folder) = folder(&[("a.yaml", &service("a", "10.0.0.1"))]);
    folder.read();
    let path = dir.path().join("a.yaml");
    fs::write(&path, b"kind: \xff\xfe").unwrap();
    let reading = folder.read();
    assert!(
        problems(&reading).starts_with("a.yaml: cannot be read: "),
        "{}",
        problems(&reading)
    );
    assert!(reading.changes.is_empty());
    // A link to nothing, and a device that never ends.
    for target in ["/nonexistent/file", "/dev/zero"] {
        fs::remove_file(&path).unwrap();
        symlink(target, &path).unwrap();
        let reading = folder.read();
        assert!(
            reading.changes.is_empty() && !reading.problems.is_empty(),
            "{target}"
        );
    }
    fs::remove_file(&path).unwrap();
    assert_eq!(text(&folder.read()), ["-a"]);
}

#[test]
fn a_folder_is_complete_when_every_object_was_read_once() {
    let (dir, mut folder) = folder(&[("a.yaml", &service("a", "10.0.0.1")), ("b.yaml", "kind: [")]);
    let reading = folder.read();
    assert_eq!(text(&reading), ["+a 10.0.0.1"]);
    assert!(!reading.is_complete);
    // An invalid object with a name is unknown too.
    fs::write(
        dir.path().join("b.yaml"),
        service("b", "10.0.0.2").replace("80", "99999"),
    )
    .unwrap();
    assert!(!folder.read().is_complete);
    fs::write(dir.path().join("b.yaml"), service("b", "10.0.0.2")).unwrap();
    assert!(folder.read().is_complete);
    fs::write(dir.path().join("b.yaml"), "kind: [").unwrap();
    assert!(folder.read().is_complete, "`b` was read before");
    fs::write(dir.path().join("c.yaml"), "kind: [").unwrap();
    assert!(!folder.read().is_complete);
    fs::remove_file(dir.path().join("c.yaml")).unwrap();
    assert!(folder.read().is_complete);
}

#[test]
fn a_folder_that_is_missing_or_empty_is_not_complete() {
    let (dir, mut folder) = folder(&[]);
    let reading = folder.read();
    assert!(!reading.is_complete);
    assert!(
        problems(&reading).ends_with(": the folder has no manifest"),
        "{}",
        problems(&reading)
    );
    let mut none = Folder::new(dir.path().join("none"));
    let reading = none.read();
    assert!(!reading.is_complete);
    assert!(
        problems(&reading).contains("none: cannot be read: "),
        "{}",
        problems(&reading)
    );
    fs::write(
        dir.path().join("a.yaml"),
        "apiVersion: v1\nkind: List\nitems: []\n",
    )
    .unwrap();
    assert!(folder.read().is_complete);
}

#[test]
fn objects_stay_if_the_folder_is_removed_or_replaced_by_an_empty_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manifests");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("a.yaml"), service("a", "10.0.0.1")).unwrap();
    let mut folder = Folder::new(&path);
    folder.read();
    fs::rename(&path, dir.path().join("old")).unwrap();
    let reading = folder.read();
    assert!(reading.changes.is_empty() && !reading.problems.is_empty());
    fs::create_dir(&path).unwrap();
    let reading = folder.read();
    assert!(reading.changes.is_empty());
    assert!(
        problems(&reading).contains("was replaced by one without manifests"),
        "{}",
        problems(&reading)
    );
    // A manifest in the new folder is all there is.
    fs::write(path.join("b.yaml"), service("b", "10.0.0.2")).unwrap();
    assert_eq!(text(&folder.read()), ["-a", "+b 10.0.0.2"]);
    // In the same folder the last file may be deleted.
    fs::remove_file(path.join("b.yaml")).unwrap();
    assert_eq!(text(&folder.read()), ["-b"]);
}

#[test]
fn objects_stay_if_the_folder_is_deleted_and_created_again_without_manifests() {
    // Not in a memory file system: ext4 gives the new folder the inode of the earlier one.
    let program = std::env::current_exe().unwrap();
    let dir = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
    for is_read_between in [true, false] {
        let path = dir.path().join(format!("manifests{is_read_between}"));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("a.yaml"), service("a", "10.0.0.1")).unwrap();
        let mut folder = Folder::new(&path);
        assert_eq!(text(&folder.read()), ["+a 10.0.0.1"]);
        // The clock of the file system ticks between the two folders.
        let created = |path: &Path| fs::metadata(path).unwrap().created().ok();
        let earlier = created(&path);
        let probe = dir.path().join("probe");
        while earlier.is_some() {
            fs::write(&probe, "").unwrap();
            let is_later = created(&probe) > earlier;
            fs::remove_file(&probe).unwrap();
            if is_later {
                break;
            }
        }
        fs::remove_dir_all(&path).unwrap();
        if is_read_between {
            assert!(folder.read().changes.is_empty());
        }
        fs::create_dir(&path).unwrap();
        let reading = folder.read();
        assert!(reading.changes.is_empty(), "{:?}", text(&reading));
        assert!(
            problems(&reading).contains("was replaced by one without manifests"),
            "{}",
            problems(&reading)
        );
    }
}

#[test]
fn a_folder_is_not_complete_while_a_new_file_is_written() {
    let (dir, mut folder) = folder(&[
        ("a.yaml", &service("a", "10.0.0.1")),
        ("b.yaml", &service("b", "10.0.0.2")),
    ]);
    let reading = folder.read_except(|name| name == "b.yaml");
    assert_eq!(text(&reading), ["+a 10.0.0.1"]);
    assert!(!reading.is_complete);
    assert_eq!(problems(&reading), "b.yaml: is being written");
    assert!(!folder.read_except(|name| name == "b.yaml").is_complete);
    let reading = folder.read();
    assert_eq!(text(&reading), ["+b 10.0.0.2"]);
    assert!(reading.is_complete && reading.problems.is_empty());
    // The objects of a file that was read before are known.
    fs::write(dir.path().join("b.yaml"), service("b", "10.0.0.3")).unwrap();
    let reading = folder.read_except(|name| name == "b.yaml");
    assert!(reading.changes.is_empty() && reading.is_complete);
}

#[test]
fn an_object_in_two_files_is_reported_and_follows_the_first_one() {
    let (dir, mut folder) = folder(&[
        ("a.yaml", &service("x", "10.0.0.1")),
        ("b.yaml", &service("x", "10.0.0.2")),
    ]);
    let reading = folder.read();
    assert_eq!(text(&reading), ["+x 10.0.0.1"]);
    let expected = "Service default/x: is in a.yaml and in b.yaml; that of a.yaml is used";
    assert_eq!(problems(&reading), expected);
    // One reading is enough, although `b.yaml` did not change.
    fs::remove_file(dir.path().join("a.yaml")).unwrap();
    let reading = folder.read();
    assert_eq!(text(&reading), ["+x 10.0.0.2"]);
    assert!(reading.problems.is_empty());
}

#[test]
fn a_problem_is_solved_although_the_other_one_of_its_file_is_now_in_another_line() {
    let broken = |name: &str| service(name, "10.0.0.1").replace("80", "99999");
    let (dir, mut folder) = folder(&[("a.yaml", &(broken("a") + &broken("b")))]);
    let before = folder.read().problems;
    let port = "spec.ports[0].port: 99999 is not a port (1 to 65535)";
    let places: Vec<_> = before
        .iter()
        .map(|problem| (&problem.place, problem.line))
        .collect();
    let place = |document, object: &str| Place {
        file: Some("a.yaml".into()),
        document: Some(document),
        object: object.to_owned(),
        field: "spec.ports[0].port".to_owned(),
    };
    let (a, b) = (place(1, "Service a"), place(2, "Service b"));
    assert_eq!(places, [(&a, Some(1)), (&b, Some(6))]);
    // `a` is repaired, and has a line more.
    let repaired = service("a", "10.0.0.1") + "# repaired\n" + &broken("b");
    fs::write(dir.path().join("a.yaml"), repaired).unwrap();
    let now = folder.read().problems;
    let difference = ProblemDifference::between(&before, &now);
    let lines: Vec<String> = difference.solved.iter().map(ToString::to_string).collect();
    assert_eq!(lines, [format!("a.yaml: document 1 (line 1): Service a: {port}")]);
    assert_eq!(difference.new, Vec::<&Problem>::new());
}

/// A folder as kubelet mounts a ConfigMap: files are links to `..data/FILE`, and `..data` is a link that is replaced.
struct ConfigMap {
    dir: TempDir,
    version: usize,
}

impl ConfigMap {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir, version: 0 }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn write(&mut self, files: &[(&str, &str)]) {
        self.version += 1;
        let version = format!("..version{}", self.version);
        fs::create_dir(self.path().join(&version)).unwrap();
        for (name, text) in files {
            fs::write(self.path().join(&version).join(name), text).unwrap();
        }
        symlink(&version, self.path().join("..data_tmp")).unwrap();
        fs::rename(self.path().join("..data_tmp"), self.path().join("..data")).unwrap();
        for (name, _) in files {
            let link = self.path().join(name);
            if link.symlink_metadata().is_err() {
                symlink(format!("..data/{name}"), link).unwrap();
            }
        }
        let entries = fs::read_dir(self.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name());
        for name in entries.filter(|name| !name.as_encoded_bytes().starts_with(b".")) {
            if !files.iter().any(|(file, _)| name == *file) {
                fs::remove_file(self.path().join(name)).unwrap();
            }
        }
        if self.version > 1 {
            let earlier = format!("..version{}", self.version - 1);
            fs::remove_dir_all(self.path().join(earlier)).unwrap();
        }
    }
}

fn watch(path: &Path) -> (Watch, Receiver<Reading>) {
    let (sender, readings) = mpsc::channel();
    let watch = Watch::start(Folder::new(path), move |reading| _ = sender.send(reading)).unwrap();
    (watch, readings)
}

/// Receives readings until the changes are these. The limit is longer than the slowest machine needs.
#[track_caller]
fn expect(readings: &Receiver<Reading>, expected: &[&str]) -> Reading {
    let mut changes = Vec::new();
    loop {
        let reading = readings.recv_timeout(Duration::from_secs(300));
        let reading = reading.unwrap_or_else(|error| panic!("{error}: {changes:?}"));
        changes.extend(text(&reading));
        changes.sort();
        if changes == expected {
            return reading;
        }
        assert!(
            changes.iter().all(|change| expected.contains(&&**change)),
            "{changes:?}"
        );
    }
}

#[test]
fn a_watch_reports_written_renamed_and_deleted_files() {
    let (dir, folder) = folder(&[("a.yaml", &service("a", "10.0.0.1"))]);
    drop(folder);
    let (_watch, readings) = watch(dir.path());
    expect(&readings, &["+a 10.0.0.1"]);
    fs::write(dir.path().join("b.yaml"), service("b", "10.0.0.2")).unwrap();
    expect(&readings, &["+b 10.0.0.2"]);
    fs::write(dir.path().join(".tmp"), service("a", "10.0.0.9")).unwrap();
    fs::rename(dir.path().join(".tmp"), dir.path().join("a.yaml")).unwrap();
    expect(&readings, &["+a 10.0.0.9"]);
    fs::remove_file(dir.path().join("b.yaml")).unwrap();
    expect(&readings, &["-b"]);
    fs::write(dir.path().join("a.yaml"), "kind: [").unwrap();
    assert!(!expect(&readings, &[]).problems.is_empty());
}

#[test]
fn a_file_is_not_read_while_it_is_written() {
    use std::io::Write;

    let (dir, folder) = folder(&[("a.yaml", &(service("a", "10.0.0.1") + &service("b", "10.0.0.2")))]);
    drop(folder);
    let (_watch, readings) = watch(dir.path());
    expect(&readings, &["+a 10.0.0.1", "+b 10.0.0.2"]);
    // The half of the text that is written first is valid, and lacks `b`.
    let mut file = fs::File::create(dir.path().join("a.yaml")).unwrap();
    file.write_all(service("a", "10.0.0.3").as_bytes()).unwrap();
    // Another change in the folder is seen meanwhile.
    fs::write(dir.path().join("c.yaml"), service("c", "10.0.0.4")).unwrap();
    expect(&readings, &["+c 10.0.0.4"]);
    file.write_all(service("b", "10.0.0.2").as_bytes()).unwrap();
    drop(file);
    expect(&readings, &["+a 10.0.0.3"]);
}

#[test]
fn the_files_of_a_config_map_change_together() {
    let mut map = ConfigMap::new();
    map.write(&[
        ("a.yaml", &service("one", "10.0.0.1")),
        ("b.yaml", &service("two", "10.0.0.2")),
    ]);
    let (_watch, readings) = watch(map.path());
    expect(&readings, &["+one 10.0.0.1", "+two 10.0.0.2"]);
    // Services move between the files; neither is deleted on the way.
    map.write(&[
        ("a.yaml", &service("two", "10.0.0.2")),
        ("b.yaml", &service("one", "10.0.0.3")),
    ]);
    let mut delivered = Vec::new();
    while !delivered.contains(&"+one 10.0.0.3".to_owned()) {
        let reading = readings.recv_timeout(Duration::from_secs(300)).unwrap();
        delivered.extend(text(&reading));
    }
    assert!(
        !delivered.iter().any(|change| change.starts_with('-')),
        "{delivered:?}"
    );
    map.write(&[("a.yaml", &service("two", "10.0.0.2"))]);
    expect(&readings, &["-one"]);
}

#[test]
fn a_folder_that_is_created_later_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("manifests");
    let (_watch, readings) = watch(&path);
    assert!(
        !readings
            .recv_timeout(Duration::from_secs(300))
            .unwrap()
            .is_complete
    );
    fs::create_dir(&path).unwrap();
    fs::write(path.join("a.yaml"), service("a", "10.0.0.1")).unwrap();
    assert!(expect(&readings, &["+a 10.0.0.1"]).is_complete);
}

#[test]
fn kinds_that_are_not_read_are_named_once_for_each_file() {
    let path = tempfile::tempdir().unwrap();
    let mut folder = Folder::new(path.path());
    let other = "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n";
    let text = service("a", "10.0.0.1") + other + "---\napiVersion: v1\nkind: Secret\n" + other;
    fs::write(path.path().join("a.yaml"), &text).unwrap();
    fs::write(path.path().join("b.yaml"), service("b", "10.0.0.2")).unwrap();
    let ignored = "a.yaml: objects of these kinds are not read: Deployment, Secret; kinds that are read: Service, EndpointSlice, Node";
    for _ in 0..2 {
        let reading = folder.read();
        assert!(reading.is_complete);
        assert_eq!(reading.problems, [].into());
        assert_eq!(reading.ignored, [ignored.to_owned()].into());
    }
    // A typing error does not delete the Service.
    fs::write(
        path.path().join("a.yaml"),
        text.replace("kind: Service", "kind: Sevice"),
    )
    .unwrap();
    let reading = folder.read();
    assert_eq!(reading.changes, []);
    let problem = reading.problems.first().unwrap().to_string();
    assert!(problem.contains("\"Sevice\" is not a kind of v1"), "{problem}");
    fs::remove_file(path.path().join("a.yaml")).unwrap();
    assert_eq!(folder.read().ignored, [].into());
}
