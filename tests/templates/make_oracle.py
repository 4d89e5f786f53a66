"""Renders chat templates by Jinja2, set up as transformers sets it up.

    python3 make_oracle.py FOLDER            writes published.txt, of the templates in FOLDER
    python3 make_oracle.py FOLDER NAME CASE  prints what becomes of one template and case
    python3 make_oracle.py                   writes snippets.json again, of the sources in it

Needs jinja2==3.1.6.
"""

import datetime
import hashlib
import json
import pathlib
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

HERE = pathlib.Path(__file__).parent
CASES = json.loads((HERE / "cases.json").read_text())
NOW = datetime.datetime.fromtimestamp(CASES["now_unix_seconds"], datetime.timezone.utc)


class Generation(jinja2.ext.Extension):
    """Renders the inside of `{% generation %}`, as transformers' own extension does."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("inside"), [], [], body).set_lineno(line)

    def inside(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def environment():
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = NOW.strftime
    return made


def render(source, case):
    template = environment().from_string(source)
    variables = {**CASES["special_tokens"], **case.get("variables", {})}
    return template.render(
        **variables,
        messages=case["messages"],
        tools=CASES["tools"] if case.get("tools") else None,
        documents=None,
        add_generation_prompt=case.get("add_generation_prompt", True),
    )


def outcome(source, case):
    """Twelve digits of the SHA-256 of the text, or a dash where Jinja2 raises an error."""
    try:
        text = render(source, case)
    except Exception:
        return "-"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def published(folder):
    lines = []
    for path in sorted(pathlib.Path(folder).glob("*.jinja")):
        source = path.read_bytes().decode()
        lines.append(" ".join([path.name] + [outcome(source, case) for case in CASES["cases"]]))
    (HERE / "published.txt").write_text("\n".join(lines) + "\n")


def snippets():
    path = HERE / "snippets.json"
    case = next(case for case in CASES["cases"] if case["name"] == "call")
    made = []
    for source, _ in json.loads(path.read_text()):
        try:
            made.append([source, render(source, case)])
        except Exception:
            made.append([source, None])
    lines = ",\n".join(json.dumps(pair, ensure_ascii=True) for pair in made)
    path.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        snippets()
    elif len(sys.argv) == 2:
        published(sys.argv[1])
    else:
        source = (pathlib.Path(sys.argv[1]) / sys.argv[2]).read_bytes().decode()
        [case] = [case for case in CASES["cases"] if case["name"] == sys.argv[3]]
        print(render(source, case), end="")
