//! `hawser local` in a terminal: the question, the answers, and the live view.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::{Case, wait};
use crate::support::eventually::eventually_or;

/// A program in a terminal with 80 columns, and everything it has written.
struct Terminal {
    child: Child,
    keyboard: File,
    shown: Arc<Mutex<Vec<u8>>>,
}

fn resize(terminal: impl AsFd, columns: u16) {
    let size = Winsize { ws_row: 40, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).unwrap();
}

impl Terminal {
    fn open(case: &Case, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::open_beside(case, arguments, variables, None)
    }

    /// As [`open`](Self::open), with stdout in a file.
    fn open_beside(
        case: &Case,
        arguments: &[&str],
        variables: &[(&str, &str)],
        stdout: Option<File>,
    ) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        resize(&ours, 80);
        let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
        let theirs = || Stdio::from(OpenOptions::new().read(true).write(true).open(&name).unwrap());
        let mut command = case.command(arguments);
        let stdout = stdout.map_or_else(theirs, Stdio::from);
        command.stdin(theirs()).stdout(stdout).stderr(theirs());
        command.env("TERM", "xterm-256color").envs(variables.iter().copied());
        let child = command.spawn().unwrap();
        drop(command);

        let keyboard = File::from(ours);
        let mut screen = keyboard.try_clone().unwrap();
        let shown = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&shown);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // Reading from a terminal fails when the program ends.
            while let Ok(count @ 1..) = screen.read(&mut buffer) {
                seen.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        Self { child, keyboard, shown }
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    fn see(&self, text: &str) {
        self.until(text, |shown| shown.contains(text));
    }

    fn until(&self, what: &str, is_shown: impl Fn(&str) -> bool) {
        let fail = || panic!("{what:?} was not shown:\n{}", self.shown());
        eventually_or(|| is_shown(&self.shown()), fail);
    }

    fn answer(mut self, text: &str) -> (std::process::ExitStatus, String) {
        self.see("[y/N]");
        self.keyboard.write_all(text.as_bytes()).unwrap();
        let status = wait(self.child);
        // The reading thread may not have the last output yet.
        let shown = || String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned();
        let ended = |shown: &String| shown.contains("Applied in") || shown.contains("Nothing was changed");
        (status, eventually_or(|| Some(shown()).filter(ended), || panic!("{}", shown())))
    }
}

const ERASE_ROW: &str = "\r\u{1b}[2K";

const MODULE: &str =
    "resource \"terraform_data\" \"x\" { input = \"made\" }\noutput \"x\" { value = \"shown\" }\n";

#[test]
fn nothing_is_changed_without_a_yes() {
    let case = Case::with(MODULE);
    let module = case.module();
    let module = module.to_str().unwrap();
    let (status, shown) = Terminal::open(&case, &[module], &[]).answer("\n");
    assert_eq!(status.code(), Some(1), "{shown}");
    assert_eq!(case.state(), "");

    let (status, shown) = Terminal::open(&case, &[module], &[]).answer("y\n");
    assert!(status.success(), "{shown}");
    assert!(case.state().contains("made"));
    for part in ["\u{1b}[", "✔", "Apply this plan?", "1 to add"] {
        assert!(shown.contains(part), "no {part:?} in {shown}");
    }
    // The time decides which of them is drawn.
    assert!(shown.contains(['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏']), "no spinner in {shown}");
}

#[test]
fn the_question_is_visible_when_stdout_is_a_file() {
    let case = Case::with(MODULE);
    let module = case.module();
    let file = case.root.path().join("out.txt");
    let out = File::create(&file).unwrap();
    let mut terminal = Terminal::open_beside(&case, &[module.to_str().unwrap()], &[], Some(out));
    terminal.see("Apply this plan? [y/N] ");
    terminal.keyboard.write_all(b"y\n").unwrap();
    assert!(wait(terminal.child).success());
    let out = std::fs::read_to_string(file).unwrap();
    assert!(out.contains("Applied in") && !out.contains("[y/N]"), "{out}");
}

/// A plan does not count a forgotten resource as a change, but the state changes.
#[test]
fn a_plan_that_only_forgets_a_resource_needs_an_answer_too() {
    let case = Case::with(MODULE);
    let module = case.module();
    let directory = module.to_str().unwrap();
    case.run(&[directory, "--yes"]).succeeds();
    let forget = "removed {\n  from = terraform_data.x\n  lifecycle {\n    destroy = false\n  }\n}\n\
                  output \"x\" { value = \"shown\" }\n";
    std::fs::write(module.join("main.tf"), forget).unwrap();
    let (status, shown) = Terminal::open(&case, &[directory], &[]).answer("\n");
    assert_eq!(status.code(), Some(1), "{shown}");
    assert!(case.state().contains("made"), "the resource was forgotten without approval: {shown}");
}

#[test]
fn no_color_selects_plain_lines_in_a_terminal() {
    let case = Case::with(MODULE);
    let module = case.module();
    let (status, shown) =
        Terminal::open(&case, &[module.to_str().unwrap()], &[("NO_COLOR", "1")]).answer("yes\n");
    assert!(status.success(), "{shown}");
    assert!(!shown.contains('\u{1b}') && shown.contains("Plan                  done in"), "{shown}");
}

#[test]
fn the_status_row_fits_a_terminal_that_becomes_narrower() {
    let case = Case::new();
    let go_on = case.root.path().join("go on");
    let command = format!("echo the first; while ! test -e '{}'; do sleep 0.1; done", go_on.display());
    let line = "words ".repeat(30);
    case.write(
        "main.tf",
        &format!(
            "resource \"terraform_data\" \"x\" {{\n  provisioner \"local-exec\" {{\n    quiet = true\n    \
             command = \"{command}; echo {line}and the last\"\n  }}\n}}\n"
        ),
    );
    let module = case.module();
    let terminal = Terminal::open(&case, &[module.to_str().unwrap(), "--yes"], &[]);
    terminal.see("the first");
    resize(&terminal.keyboard, 15);
    // The next row may still use the old width.
    let drawn = || terminal.shown().matches(ERASE_ROW).count();
    let before = drawn();
    terminal.until("the status row", |shown| shown.matches(ERASE_ROW).count() > before + 2);
    let before = drawn();
    std::fs::write(&go_on, "").unwrap();
    terminal.until("the last line", |shown| shown.contains("Applied in") && shown.ends_with('\n'));
    let shown = terminal.shown();
    for part in shown.split(ERASE_ROW).skip(before) {
        let row = part.rsplit('\n').next().unwrap();
        assert!(console::measure_text_width(row) < 15, "{row:?} in\n{shown}");
    }
    assert!(shown.contains(&format!("{line}and the last")), "{shown}");
    assert!(wait(terminal.child).success());
}
