//! Runs scripts in real bash, with small programs as engines, and with a gate that always says yes. `tests/it/supervisor` has
//! the tests with the real gate.

use std::fs;
use std::path::Path;
use std::process::{Command as Process, Stdio};

use proptest::prelude::*;

use super::*;
use crate::script::{HiddenArguments, Piece, quote};

struct Ran {
    code: Option<i32>,
    part: Option<ScriptPhase>,
    stdout: String,
    stderr: String,
}

fn before(text: &str) -> Option<Hook<'_>> {
    Hook::new("PlanBeforeHook", Some(text))
}

fn after(text: &str) -> Option<Hook<'_>> {
    Hook::new("PlanAfterHook", Some(text))
}

fn sh(script: &str) -> EngineCommand {
    EngineCommand::new(["bash", "-c", script])
}

fn last_part(file: &Path) -> Option<ScriptPhase> {
    fs::read_to_string(file).ok()?.lines().last().and_then(ScriptPhase::from_word)
}

const GATE_THAT_SAYS_YES: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/src/script/bash_script/gate_that_says_yes.sh");

fn run(script: &Script<'_>) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let (part, file) = (folder.path().join("it's the part"), folder.path().join("script.sh"));
    fs::write(&file, script.text().unwrap()).unwrap();
    let mut bash = Process::new("bash");
    bash.arg(&file).arg(GATE_THAT_SAYS_YES).arg(&part).current_dir(folder.path()).stdin(Stdio::null());
    let output = bash.output().unwrap();
    Ran {
        code: output.status.code(),
        part: last_part(&part),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn script<'a>(before: Option<Hook<'a>>, engine: EngineCommand, after: Option<Hook<'a>>) -> Script<'a> {
    Script { title: "test".to_owned(), before, engine: vec![engine], after, ..Script::default() }
}

#[test]
fn an_export_and_a_cd_of_the_before_hook_reach_the_engine_and_the_after_hook() {
    let ran = run(&script(
        before("export TOKEN='a b'\ncd /usr"),
        sh("echo \"engine $TOKEN $PWD\""),
        after("echo \"after $TOKEN $PWD\""),
    ));
    assert_eq!(ran.stdout, "engine a b /usr\nafter a b /usr\n");
    assert_eq!((ran.code, ran.part), (Some(0), Some(ScriptPhase::Done)));
}

#[test]
fn another_exit_code_is_a_success_only_if_the_file_exists() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("it's a plan");
    let engine = |text: &str| sh(text).also_success(2, file.clone());
    let made = format!("touch {}; exit 2", quote(file.to_str().unwrap()));
    let ran = run(&script(None, engine("exit 2"), after("echo after")));
    assert_eq!((ran.code, ran.part), (Some(2), Some(ScriptPhase::Engine)));
    let ran = run(&script(None, engine(&made), after("echo after")));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "after\n"));
}

#[test]
fn each_phase_can_fail_the_script() {
    let cases = [
        (script(before("echo b; (exit 3)"), sh("echo e"), after("echo a")), 3, ScriptPhase::Before, "b\n"),
        (script(before("echo b"), sh("echo e; exit 4"), after("echo a")), 4, ScriptPhase::Engine, "b\ne\n"),
        (script(before("echo b"), sh("echo e"), after("echo a; exit 5")), 5, ScriptPhase::After, "b\ne\na\n"),
        (script(before("echo b >&2"), sh("echo e >&2"), after("echo a >&2")), 0, ScriptPhase::Done, ""),
        // As in any script, a failing command in the middle does not stop bash.
        (script(before("false\necho b"), sh("true"), None), 0, ScriptPhase::Done, "b\n"),
    ];
    for (script, code, part, stdout) in cases {
        let ran = run(&script);
        assert_eq!(
            (ran.code, ran.part, ran.stdout.as_str()),
            (Some(code), Some(part), stdout),
            "{}",
            ran.stderr
        );
    }
}

#[test]
fn a_before_hook_that_exits_early_is_detected_and_the_engine_does_not_run() {
    for hook in ["exit 0", "exec true", "trap 'exit 0' EXIT; exit 7", "set -n"] {
        let ran = run(&script(before(hook), sh("echo engine"), None));
        assert_eq!((ran.code, ran.part), (Some(0), Some(ScriptPhase::Before)), "{hook}");
        assert_eq!(ran.stdout, "", "{hook}");
    }
}

#[test]
fn a_syntax_error_is_a_failure_of_the_hook() {
    for hook in ["if true; then", "echo 'open", "cat <<EOF\nopen", "}", "done", "case x in"] {
        let ran = run(&script(before(hook), sh("echo engine"), after("echo after")));
        // Bash only warns about an unterminated here-document.
        if hook.starts_with("cat") {
            assert_eq!(ran.part, Some(ScriptPhase::Done), "{hook}: {}", ran.stderr);
            continue;
        }
        assert_ne!(ran.code, Some(0), "{hook}");
        assert_eq!((ran.part, ran.stdout.as_str()), (Some(ScriptPhase::Before), ""), "{hook}");
        let ran = run(&script(None, sh("echo engine"), after(hook)));
        assert_ne!(ran.code, Some(0), "{hook}");
        assert_eq!((ran.part, ran.stdout.as_str()), (Some(ScriptPhase::After), "engine\n"), "{hook}");
    }
}

#[test]
fn options_and_traps_left_by_a_hook_are_harmless() {
    let here = tempfile::NamedTempFile::new().unwrap();
    for hook in [
        "set -euo pipefail",
        "set -C",
        "set -o posix",
        "set -f; IFS=/; set -u",
        "trap 'exit 99' ERR; set -E",
        "trap 'echo bye >/dev/null' EXIT",
        "shopt -s nullglob failglob extglob",
        "set -x",
        "set -- a b c; shift",
        "printf() { :; }; unset -f printf",
    ] {
        let ran = run(&script(before(hook), sh("echo engine"), after("echo after")));
        assert_eq!((ran.code, ran.part), (Some(0), Some(ScriptPhase::Done)), "{hook}: {}", ran.stderr);
        let ran = run(&script(
            before(hook),
            sh("exit 2").also_success(2, here.path().to_owned()),
            after("echo after"),
        ));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "after\n"), "{hook}: {}", ran.stderr);
        let ran = run(&script(before(hook), sh("exit 6"), after("echo after")));
        assert_eq!(
            (ran.code, ran.part, ran.stdout.as_str()),
            (Some(6), Some(ScriptPhase::Engine), ""),
            "{hook}"
        );
    }
}

#[test]
fn set_e_works_inside_a_hook() {
    let ran = run(&script(before("set -e\nfalse\necho unreachable"), sh("echo engine"), None));
    assert_eq!((ran.code, ran.part, ran.stdout.as_str()), (Some(1), Some(ScriptPhase::Before), ""));
}

/// Pre-approval ignores it, so it must not be run either.
#[test]
fn trailing_white_space_of_a_hook_is_not_part_of_its_last_word() {
    for end in ["", "\r", "\r\n\r", "\u{a0}", "\u{b}\u{c}", " \t\n"] {
        let text = format!("printf '[%s]' one two{end}");
        assert_eq!(run(&script(before(&text), sh("true"), None)).stdout, "[one][two]", "{end:?}");
    }
}

#[test]
fn crlf_line_ends_of_a_hook_are_converted() {
    let ran = run(&script(before("export A=1\r\necho \"[$A]\"\r\n"), sh("true"), None));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "[1]\n"), "{}", ran.stderr);
}

#[test]
fn commands_run_in_order_until_one_fails_and_stdout_is_redirected() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a file");
    let mut wanted = script(before("set -C"), sh("cat; echo seen").stdin("it's $HOME"), None);
    wanted.engine.push(sh("echo kept").stdout(file.clone()));
    wanted.engine.push(sh("exit 9"));
    wanted.engine.push(sh("echo not reached"));
    fs::write(&file, "old").unwrap();
    let ran = run(&wanted);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(9), "it's $HOME\nseen\n"));
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept\n");
}

#[test]
fn collecting_after_a_failure_does_not_change_the_exit_code() {
    let mut wanted = script(None, sh("exit 4"), after("echo after"));
    wanted.collect = vec![sh("echo collected; exit 1")];
    assert_eq!(run(&wanted).stdout, "");
    wanted.collect_after_failure = true;
    let ran = run(&wanted);
    assert_eq!(
        (ran.code, ran.part, ran.stdout.as_str()),
        (Some(4), Some(ScriptPhase::Engine), "collected\n")
    );
    // Nor does it after a success.
    wanted.engine = vec![sh("exit 0")];
    let ran = run(&wanted);
    assert_eq!(
        (ran.code, ran.part, ran.stdout.as_str()),
        (Some(0), Some(ScriptPhase::Done), "collected\nafter\n")
    );
    wanted.collect_after_failure = false;
    let ran = run(&wanted);
    assert_eq!((ran.code, ran.part), (Some(1), Some(ScriptPhase::Collect)));
    wanted.collect_after_failure = true;

    wanted.collect = vec![sh("echo collected").only_after_failure()];
    let ran = run(&wanted);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "after\n"), "{}", ran.stderr);
    wanted.engine = vec![sh("exit 4")];
    assert_eq!(run(&wanted).stdout, "collected\n");
}

#[test]
fn a_command_is_only_retried_for_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    for hook in ["true", "set -euo pipefail; set -C", "trap 'exit 99' ERR; set -E"] {
        for (first, code, stdout, stderr) in [
            ("echo it\\'s the \\* reason, really >&2; exit 3", 7, "again\n", ""),
            ("echo its the reason >&2; exit 3", 3, "", "its the reason\n"),
            ("echo it\\'s the \\* reason >&2", 0, "after\n", "it's the * reason\n"),
            ("exit 4", 4, "", ""),
        ] {
            let retry = Retry {
                text: "it's the * reason",
                stderr: folder.path().join("std err"),
                command: sh("cat; exit 7").stdin("again"),
            };
            let ran = run(&script(before(hook), sh(first).retry(retry), after("echo after")));
            let expected = (Some(code), stdout.to_owned(), format!("{BEFORE_HOOK_ENDED}\n{stderr}"));
            assert_eq!((ran.code, ran.stdout, ran.stderr), expected, "{hook}: {first}");
        }
    }
}

#[test]
fn a_failed_copy_of_the_result_is_reported_and_does_not_fail_the_script() {
    for hook in ["true", "set -euo pipefail", "trap 'exit 99' ERR; set -E", "set -e; exec 2>&-"] {
        let mut wanted = script(before(hook), sh("echo engine"), after("echo after"));
        let copy = EngineCommand::new(["bash", "-c", "echo copy; exit 3", "the place"]);
        wanted.publish = vec![copy.clone(), copy];
        let ran = run(&wanted);
        assert_eq!((ran.code, ran.part), (Some(0), Some(ScriptPhase::Done)), "{hook}: {}", ran.stderr);
        assert_eq!(ran.stdout, "engine\ncopy\ncopy\nafter\n", "{hook}");
        let reported = ran.stderr.matches("hawser: failed to copy the result to the place").count();
        assert_eq!(reported, if hook.ends_with("2>&-") { 0 } else { 2 }, "{hook}: {}", ran.stderr);

        wanted.engine = vec![sh("exit 4")];
        assert_eq!(run(&wanted).stdout, "", "{hook}");
        wanted.collect_after_failure = true;
        let ran = run(&wanted);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(4), "copy\ncopy\n"), "{hook}: {}", ran.stderr);
    }
}

#[test]
fn hidden_arguments_are_resolved_after_the_hook_and_follow_the_users_own() {
    let mut command = sh("printf '%s\\n' \"$ARGS\"");
    command.hidden = Some(HiddenArguments {
        variable: "ARGS",
        arguments: vec![Piece::split("key=${SECRET}/$SECRET it's"), Piece::split("other=$UNSET!")],
    });
    let hook = "set -eu; export SECRET='a\\b&'\\''c $(id)'";
    let ran = run(&script(before(hook), command.clone(), after("echo \"[${ARGS-}]\"")));
    let quoted = r"a\b&'\''c $(id)";
    assert_eq!(ran.stdout, format!("   'key={quoted}/{quoted} it'\\''s' 'other=!'\n[]\n"), "{}", ran.stderr);
    assert!(ran.stderr.contains("$UNSET is not set"), "{}", ran.stderr);
    let ran =
        run(&script(before("export SECRET=s UNSET= ARGS='their own'"), command, after("echo \"[$ARGS]\"")));
    assert_eq!(ran.stdout, "their own   'key=s/s it'\\''s' 'other=!'\n[their own]\n");
    assert_eq!(ran.stderr, format!("{BEFORE_HOOK_ENDED}\n"));
}

#[test]
fn hidden_arguments_follow_all_of_the_users_own() {
    let mut command = sh("printf '[%s]' \"$ARGS\" \"$TF_CLI_ARGS\" \"$ONLY\"").variable("ONLY", "it's $HOME");
    command.hidden = Some(HiddenArguments {
        variable: "ARGS",
        arguments: vec![vec![Piece::Text("-var=a=$HOME".to_owned())]],
    });
    let ran = run(&script(
        before("set -u; export ARGS=first TF_CLI_ARGS=second"),
        command.clone(),
        after("echo \"[$ARGS][$TF_CLI_ARGS][${ONLY-}]\""),
    ));
    assert_eq!(
        ran.stdout, "[first second  '-var=a=$HOME'][][it's $HOME][first][second][]\n",
        "{}",
        ran.stderr
    );
    let ran = run(&script(before("set -u; unset ARGS TF_CLI_ARGS"), command, None));
    assert_eq!(ran.stdout, "[   '-var=a=$HOME'][][it's $HOME]", "{}", ran.stderr);
}

#[test]
fn references_to_variables_are_found_and_other_dollar_signs_are_literal() {
    let text = |text: &str| Piece::Text(text.to_owned());
    let variable = |name: &str| Piece::Variable(name.to_owned());
    assert_eq!(
        Piece::split("a$B/${C_1}d"),
        [text("a"), variable("B"), text("/"), variable("C_1"), text("d")]
    );
    for plain in ["", "$", "a$", "$1", "${1}", "${A", "${}", "${A-b}", "$(id)", "$ A", "é$é", "100%"] {
        let expected: Vec<_> = if plain.is_empty() { vec![] } else { vec![text(plain)] };
        assert_eq!(Piece::split(plain), expected, "{plain}");
    }
    assert_eq!(Piece::split("$$A"), [text("$"), variable("A")]);
}

#[test]
fn a_nul_byte_is_refused() {
    script(before("a\0b"), sh("true"), None).text().unwrap_err();
    script(None, sh("a\0b"), None).text().unwrap_err();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn no_hook_text_swallows_the_lines_after_it(hook in "[\"'`$(){}\\[\\];&|<> \n\\\\#!*?=aé]{0,40}") {
        // Either the hook failed or exited, or the engine ran.
        let ran = run(&script(before(&hook), sh("echo engine"), None));
        let engine_ran = ran.stdout.contains("engine");
        prop_assert_eq!(engine_ran, ran.part == Some(ScriptPhase::Done), "{:?} {:?}", ran.code, ran.stderr);
    }
}

/// The limit is that of the kernel.
#[test]
fn values_up_to_the_limit_are_passed_and_longer_ones_are_refused_with_a_hint() {
    let hidden =
        |text: String| HiddenArguments { variable: "HAWSER_TEST", arguments: vec![vec![Piece::Text(text)]] };
    let mut argument = sh("printf '%s' \"${#1}\"");
    argument.words.extend(["bash".to_owned(), "x".repeat(LONGEST_WORD)]);
    let mut variable = sh("printf '%s' \"${#LONG}\"");
    variable.variables.push(("LONG", "x".repeat(LONGEST_WORD - "LONG=".len())));
    let mut environment = sh("printf '%s' \"${#HAWSER_TEST}\"");
    // Two quotes and a space around it, a quote that becomes four characters, and two spaces before it.
    let between = 2;
    let text = format!("'{}", "x".repeat(LONGEST_WORD - "HAWSER_TEST=".len() - between - 3 - 4));
    environment.hidden = Some(hidden(text.clone()));
    for command in [&argument, &variable, &environment] {
        let ran = run(&script(None, command.clone(), None));
        assert_eq!((ran.code, ran.stdout.len()), (Some(0), 6), "{}", ran.stderr);
    }
    argument.words.last_mut().unwrap().push('x');
    variable.variables[0].1.push('x');
    environment.hidden = Some(hidden(format!("{text}x")));
    for command in [argument, variable, environment] {
        // `unwrap_err` would print the whole text.
        let text = script(None, command, None).text();
        let Err(error) = text else { panic!("not refused") };
        let message = error.to_string();
        assert!(matches!(error, ScriptError::TooLong { .. }), "{message}");
        assert!(
            message.contains("bash") && message.contains("parameters") && message.len() < 300,
            "{message}"
        );
    }
}
