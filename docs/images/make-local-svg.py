#!/usr/bin/env python3
"""Run `hawser local --yes` in a pseudo terminal and draw what it prints as docs/images/local.svg.

    cargo build && docs/images/make-local-svg.py [path/to/hawser]

The run is real: an empty home directory, the built-in example, and the terraform on PATH.
Long stretches of engine output are folded so that the picture fits on a page.
Needs Python 3.9 or later and nothing besides its standard library.
"""

import fcntl
import html
import os
import pty
import re
import struct
import sys
import tempfile
import termios
from pathlib import Path

COLUMNS, ROWS = 96, 50
SHORT = 3  # a task with at most this many lines of output is shown whole
KEPT = re.compile(r"terraform \d|Terraform has been|Plan: |Apply complete|\d+ resources in")  # of the others, these lines

HERE = Path(__file__).resolve().parent
FOREGROUND, BACKGROUND, DIM = "#d7dae0", "#1e2127", "#7f8794"
COLORS = {30: "#5c6370", 31: "#e06c75", 32: "#98c379", 33: "#e5c07b", 34: "#61afef", 35: "#c678dd", 36: "#56b6c2"}


def capture(program):
    """Everything that the program writes to a terminal of COLUMNS x ROWS."""
    with tempfile.TemporaryDirectory(prefix="hawser-") as home:
        child, terminal = pty.fork()
        if child == 0:
            environment = {
                "HOME": home,
                "PATH": os.environ["PATH"],
                "TERM": "xterm-256color",
                "LANG": "C.UTF-8",
            }
            size = struct.pack("HHHH", ROWS, COLUMNS, 0, 0)
            fcntl.ioctl(sys.stdout.fileno(), termios.TIOCSWINSZ, size)
            os.execve(program, ["hawser", "local", "--yes"], environment)
        output = b""
        while True:
            try:
                chunk = os.read(terminal, 65536)
            except OSError:  # Linux reports the end of a pseudo terminal as EIO.
                break
            if not chunk:
                break
            output += chunk
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0:
        sys.exit(f"hawser local exited with code {status}:\n{output.decode(errors='replace')}")
    return output.decode()


def screen(text):
    """The lines that remain on the screen: lists of (character, style), after all cursor movements."""
    lines, row, column, style = [[]], 0, 0, ()
    for match in re.finditer(r"\x1b\[([?0-9;]*)([A-Za-z])|([^\x1b])", text):
        arguments, command, character = match.groups()
        if command:
            number = int(arguments) if arguments.isdigit() else 1
            if command == "m":
                codes = [int(code or 0) for code in arguments.split(";")]
                style = () if 0 in codes else style
                style += tuple(code for code in codes if code)
            elif command == "A":
                row = max(0, row - number)
            elif command == "J":  # to the end of the screen
                del lines[row + 1 :], lines[row][column:]
            elif command == "K":
                del lines[row][column:]
        elif character == "\r":
            column = 0
        elif character == "\n":
            row += 1
            if row == len(lines):
                lines.append([])
        else:
            line = lines[row]
            line.extend([(" ", ())] * (column + 1 - len(line)))
            line[column] = (character, style)
            column += 1
    while lines and not lines[-1]:
        lines.pop()
    return lines


def spans(line):
    """The line as SVG text spans, one for each run of equal style."""
    runs = []
    for character, style in line:
        if runs and runs[-1][1] == style:
            runs[-1][0] += character
        else:
            runs.append([character, style])
    for text, style in runs:
        color = next((COLORS[code] for code in style if code in COLORS), None)
        attributes = ""
        if 2 in style or color:
            attributes += f' fill="{color or DIM}"'
        if 1 in style:
            attributes += ' font-weight="bold"'
        yield f"<tspan{attributes}>{html.escape(text, quote=False)}</tspan>"


def draw(lines):
    width, height = COLUMNS * 8.4 + 40, len(lines) * 19 + 34
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}" '
        'role="img" aria-label="A run of hawser local in a terminal">'
    )
    yield f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>'
    yield (
        f'<g fill="{FOREGROUND}" font-size="14" xml:space="preserve" '
        'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, \'DejaVu Sans Mono\', monospace">'
    )
    for number, line in enumerate(lines):
        if line:
            yield f'<text x="20" y="{number * 19 + 31}">{"".join(spans(line))}</text>'
    yield "</g>"
    yield "</svg>"


def fold(lines):
    """The lines without most of the engine's output, which the program prints behind a ruler."""
    folded, output = [], []
    for line in [*lines, []]:
        if line and line[0][0] == "│":
            if text_of(line[1:]).strip():
                output.append(line)
            continue
        if len(output) <= SHORT:
            folded += output
        else:
            left_out = 0
            for kept in [*output, None]:
                if kept and not KEPT.match(text_of(kept[2:])):
                    left_out += 1
                    continue
                if left_out:
                    folded.append([(character, (2,)) for character in f"│ … {left_out} line{'s' if left_out > 1 else ''}"])
                left_out = 0
                folded += [kept] if kept else []
        folded.append(line)
        output = []
    return folded[:-1]


def clip(line):
    """The line cut to the width of the picture."""
    return line if len(line) <= COLUMNS else [*line[: COLUMNS - 1], ("…", (2,))]


def text_of(line):
    return "".join(character for character, _ in line)


def main():
    default = HERE.parent.parent / "target" / "debug" / "hawser"
    program = Path(sys.argv[1] if len(sys.argv) > 1 else default).resolve()
    prompt = [("$", (32,))] + [(character, (1,)) for character in " hawser local --yes"]
    lines = [prompt, *map(clip, fold(screen(capture(str(program)))))]
    (HERE / "local.svg").write_text("\n".join(draw(lines)) + "\n", encoding="utf-8")
    print("\n".join(map(text_of, lines)))


if __name__ == "__main__":
    main()
