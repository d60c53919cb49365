"""Wrong command lines: each is one line that names the word, and what would be right."""

from __future__ import annotations

import pytest

from mqtt_broker.cli.main import main

WRONG = {
    "broker --prot 1883": "unrecognized arguments: --prot 1883; did you mean --port?",
    "broker --prot=1883": "unrecognized arguments: --prot=1883; did you mean --port?",
    "broker --dura commit": "unrecognized arguments: --dura commit; did you mean --durability?",
    "broker --xyzzy": "unrecognized arguments: --xyzzy (",
    "broker surplus": "unrecognized arguments: surplus (",
    "pub -t a -m x --usrname u": "did you mean --username?",
    "stream create a --filter b --retian 7d": "did you mean --retain?",
    "broker --port abc": "argument --port: 'abc' is not a whole number",
    "pub -t a -m x --repeat-delay soon": "argument --repeat-delay: 'soon' is not a number",
    "brokr": "no command 'brokr': there are broker, pub, ",
}


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_command_line_is_one_line(words: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words.split())
    out, err = capfd.readouterr()
    assert (end.value.code, out) == (2, "")
    assert err.count("\n") == 1 and WRONG[words] in err and "--help)" in err
