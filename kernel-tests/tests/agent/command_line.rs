//! The command line, where a shell or another program reads it.

use kernlink_kernel_tests::programs;

use crate::support::text;

/// What bash completes the last of these words to.
fn completed(words: &[&str]) -> String {
    let agent = programs::agent();
    let script = format!(
        "source <({} completions bash)\nCOMP_WORDS=(kernlink-agent {})\nCOMP_CWORD={}\n_kernlink__agent kernlink-agent \"${{COMP_WORDS[COMP_CWORD]}}\" \
         \"${{COMP_WORDS[COMP_CWORD-1]}}\"\necho \"${{COMPREPLY[@]}}\"",
        agent.get_program().to_str().unwrap(),
        words.join(" "),
        words.len()
    );
    let output = programs::command("bash").args(["-c", &script]).output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        text(&output)
    );
    text(&output).trim().to_owned()
}

#[test]
fn bash_completes_subcommands_flags_and_values() {
    assert_eq!(completed(&["expl"]), "explain");
    assert_eq!(completed(&["run", "--ipvs-sch"]), "--ipvs-scheduler");
    assert_eq!(completed(&["--ipvs-sch"]), "--ipvs-scheduler");
    assert_eq!(completed(&["status", "--output", ""]), "table json");
    assert_eq!(
        completed(&["completions", ""])
            .split(' ')
            .filter(|word| !word.starts_with('-'))
            .collect::<Vec<_>>(),
        ["bash", "zsh", "fish"]
    );
}

#[test]
fn the_exit_status_distinguishes_help_from_an_invalid_command_line() {
    for (line, status) in [
        ("--help", 0),
        ("run --help", 0),
        ("--version", 0),
        ("--wach /m", 2),
        ("--node-ip x", 2),
        ("--once --dry-run", 2),
        ("--write-config-to f", 2),
        ("stat", 2),
        ("preflight --once", 2),
        ("--node-name n --watch /a --watch /b", 2),
        ("--node-name n --proxy-mode none --watch /a", 2),
        ("--node-name n --config /nonexistent", 1),
    ] {
        let output = programs::agent().args(line.split(' ')).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{line}: {}", text(&output));
        assert_eq!(output.stdout.is_empty(), status != 0, "{line}: {}", text(&output));
    }
}
