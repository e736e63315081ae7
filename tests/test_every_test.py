"""The table of all tests is read as it was written, and a file that fails is a row that says so."""

import every_test


def test_rows_survive_and_failures_are_said(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(every_test, "PAGE", tmp_path / "SLOW.md")
    (tmp_path / "good.py").write_text("def test_it():\n    pass\n")
    (tmp_path / "bad.py").write_text("def test_it():\n    assert 0, 'on purpose'\n")
    good = every_test.run(str(tmp_path / "good.py"), "abc", [])
    bad = every_test.run(str(tmp_path / "bad.py"), "abc", [])
    assert (good[1], good[3]) == ("abc", "1 passed")
    assert bad[3] == "FAILED: 1 failed" and "on purpose" in capfd.readouterr().err
    every_test.write({"tests/b.py": bad, "tests/a.py": good})
    assert every_test.read() == {"tests/a.py": good, "tests/b.py": bad}
