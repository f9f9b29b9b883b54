"""Names, options and clashes of registered parts."""

from __future__ import annotations

import abc
import sys

import pytest

from fractal_ssm import UsageError
from fractal_ssm.registry import Registry, alphas, import_plugins


@pytest.fixture
def registry() -> Registry:
    # `json` is a package whose import registers nothing.
    return Registry("toy", "json")


def test_register_build_and_list(registry):
    @registry.register("one")
    def one(size, scale=2.0):
        return size * scale

    assert registry.names() == ["one"] and registry.get("one") is one
    assert registry.options("one", runtime=["size"]) == ["scale"]
    assert registry.build({"name": "one", "scale": 3.0}, size=2, not_asked_for=1) == 6.0


def test_an_unfinished_class_is_told(registry):
    @registry.register("half")
    class Half(abc.ABC):
        @abc.abstractmethod
        def causal(self): ...

    with pytest.raises(UsageError, match=r"The toy 'half' \(.*Half\) lacks causal, which its base class asks for"):
        registry.build({"name": "half"})


def test_mistakes_in_a_node(registry):
    @registry.register("one")
    def one(size, scale=2.0):
        return size * scale

    with pytest.raises(UsageError, match="Unknown toy 'onee'. Known: one. Did you mean 'one'"):
        registry.build({"name": "onee"})
    with pytest.raises(UsageError, match=r"no option 'scael'. Its options: scale. Did you mean 'scale'\?"):
        registry.build({"name": "one", "scael": 1}, size=1)
    with pytest.raises(UsageError, match="needs size"):
        registry.build({"name": "one"})
    with pytest.raises(UsageError, match="needs a 'name'"):
        registry.build({"scale": 1})


def test_a_run_time_fact_is_no_option(registry):
    @registry.register("one")
    def one(size):
        return size

    with pytest.raises(UsageError, match="no option 'size'. Its options: none."):
        registry.build({"name": "one", "size": 3}, size=2)


def test_clash_and_reload(registry):
    def make():
        @registry.register("one")
        def one():
            return 1

        return one

    first, second = make(), make()
    assert registry.get("one") is second is not first

    with pytest.raises(UsageError, match="'one' is taken by .*one; .*other needs another name"):

        @registry.register("one")
        def other():
            return 2


def test_open_signatures_are_refused(registry):
    with pytest.raises(UsageError, match=r"takes \*\*options, so a misspelt option would pass unnoticed"):

        @registry.register("one")
        def one(**options):
            return options


def test_modules_to_import(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine_fine.py").write_text("VALUE = 1\n")
    (tmp_path / "mine_broken.py").write_text("import not_installed_anywhere\n")
    import_plugins(["mine_fine"])
    assert sys.modules["mine_fine"].VALUE == 1
    for missing in ("mine_missing", "mine_missing.alphas", "mine_fine.alphas"):
        with pytest.raises(UsageError, match=f"imports names '{missing}'"):
            import_plugins([missing])
    # A dependency that the plug-in lacks is its own error, shown untouched.
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        import_plugins(["mine_broken"])


def test_a_node_is_a_mapping_and_a_name_a_word(registry):
    with pytest.raises(UsageError, match=r"mapping of 'name' and options, such as \{'name': 's5'\}, got 's5'"):
        registry.build("s5", d_model=4)
    with pytest.raises(UsageError, match="needs a 'name', got {'name': 3}"):
        registry.build({"name": 3})
    for name in (3, "", len):
        with pytest.raises(UsageError, match="registered under a name"):
            registry.register(name)


def test_messages_have_the_right_article():
    with pytest.raises(UsageError, match="An alpha needs a 'name'"):
        alphas.build({})
