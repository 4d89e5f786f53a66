#!/usr/bin/env python3
"""Validates replies against their JSON schemas with the package jsonschema.

    validate_schemas.py REPLIES.jsonl

Each line of the file is {"schema": …, "reply": TEXT, "finished": true|false, …}. Unfinished replies are counted and not
validated. The report on standard output is JSON: the number of valid replies, the number that also pass the checks of
formats (JSON Schema 2020-12 does not require them), and the first faults.
"""

import json
import sys
from importlib.metadata import version

from jsonschema.validators import validator_for

# Most faults to report.
FAULTS = 10


def fault_of(schema, reply, with_formats):
    """Returns why a reply does not match its schema, or None."""
    validator = validator_for(schema)
    validator.check_schema(schema)
    checker = validator.FORMAT_CHECKER if with_formats else None
    try:
        value = json.loads(reply)
    except ValueError as error:
        return f"no JSON: {error}"
    error = next(validator(schema, format_checker=checker).iter_errors(value), None)
    return error and f"{error.json_path}: {error.message}"


def main(path):
    report = {"jsonschema": version("jsonschema"), "replies": 0, "finished": 0, "valid": 0, "valid_formats": 0}
    faults = []
    with open(path, encoding="utf-8") as lines:
        for index, line in enumerate(lines):
            case = json.loads(line)
            report["replies"] += 1
            if not case["finished"]:
                continue
            report["finished"] += 1
            for name, with_formats in (("valid", False), ("valid_formats", True)):
                fault = fault_of(case["schema"], case["reply"], with_formats)
                report[name] += fault is None
                if fault is not None:
                    faults.append({"line": index + 1, "check": name, "fault": fault[:400]})
    report["faults"] = faults[:FAULTS]
    json.dump(report, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
