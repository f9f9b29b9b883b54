"""Tables of results in the documents are what the scripts write from the committed records."""

from __future__ import annotations

import pytest

from scripts import comparisons, experiment_table, records, tables


def test_tables_stand_between_their_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table: t -->\nold\n<!-- end -->\nafter\n")
    tables.write(page, "t", ["a", "b"], [["1", "2"]])
    assert page.read_text() == "before\n<!-- table: t -->\n| a | b |\n| --- | --- |\n| 1 | 2 |\n<!-- end -->\nafter\n"
    with pytest.raises(ValueError, match="page.md.*'other' exactly once"):
        tables.write(page, "other", ["a"], [])


def test_the_index_of_experiments_is_what_the_script_writes():
    lines = [[f"`{name}`", *rest] for name, *rest in experiment_table.rows()]
    page = experiment_table.PAGE.read_text()
    body = tables.markdown(["experiment", "published", "measured"], lines)
    assert tables.replaced(page, "experiments", body) == page, "run python -m scripts.experiment_table"


def test_headers_and_results_agree():
    for name, _, text in experiment_table.rows():
        path = experiment_table.EXPERIMENTS / f"{name}.yaml"
        measured = experiment_table.header_field(path, "Measured")
        assert measured == text, f"run python -m scripts.experiment_table: {path}"


@pytest.mark.parametrize("path", comparisons.PAGES, ids=lambda path: path.name)
def test_tables_of_comparisons_are_what_the_script_writes(path):
    text = path.read_text()
    assert comparisons.names(text), "a page without a comparison is none of the script's"
    assert comparisons.rewritten(path) == text, "run python -m scripts.comparisons"


def test_every_mark_of_a_page_has_its_comparison():
    for path in comparisons.PAGES:
        marks = path.read_text().count("<!-- table: ")
        summaries = path.read_text().count(f"<!-- table: {comparisons.SUMMARY} -->")
        assert len(comparisons.names(path.read_text())) + summaries == marks, path


def test_fractal_against_s5_has_the_sign_of_fractal_minus_s5_whichever_is_the_baseline():
    lines = {line[0].partition("]")[0][1:]: line for line in comparisons.summary(records.RESULTS, comparisons.PAGES[1])}
    for name, task, sign in (("layers-pathfinder", "proxy/pathfinder", 1), ("second-co2", "series/co2", -1)):
        differences = records.read(records.RESULTS / name / "differences.csv")
        found = next(row for row in differences if next(iter(row.values())) in ("fractal", "s5"))
        line = lines[task]
        assert float(line[4]) == pytest.approx(sign * float(list(found.values())[1]))
        assert [float(bound) for bound in line[5].split(" to ")] == sorted(
            sign * float(bound) for bound in found["95 % interval (t)"].split(" to ")
        )
        assert line[6] == found["p corrected (Holm)"] and f"(results/{name}/report.md)" in line[0]
    assert lines["proxy/pathfinder"][-1] == "S5" and lines["series/co2"][-1] == "FRACTAL"
    assert lines["proxy/adding"][-1] == "not told apart"


def test_a_table_pairs_arms_with_their_differences(tmp_path):
    (tmp_path / "arms.csv").write_text(
        "arm,test accuracy,n,published,parameters\ns5,50.00 %,5,-,10\nx,60.00 %,5,-,20\n"
    )
    columns = 'against s5,"difference, points",95 % interval (t),p corrected (Holm),would have been seen,pairs'
    (tmp_path / "differences.csv").write_text(f"{columns}\nx,+10.00,+9 to +11,0.001,2.00,5\n")
    header, lines = comparisons.table(tmp_path)
    assert header[2] == "against s5, points" and "published" not in header
    assert lines == [
        ["s5", "50.00 %", "", "", "", "", "5", "10"],
        ["x", "60.00 %", "+10.00", "+9 to +11", "0.001", "2.00", "5", "20"],
    ]


def test_runs_with_other_settings_are_no_measure_of_an_experiment():
    def conditions(*overrides, lra=True):
        facts = {"choices": {"experiment": "lra/s5-listops", "budget": "cpu"}, "data": {"lra": lra}}
        return experiment_table.conditions(
            experiment_table.Run(records.ROOT, "finished", {**facts, "overrides": overrides})
        )

    assert conditions("experiment=lra/s5-listops", "seed=3", "training.max_minutes=null") == "budget=cpu"
    assert conditions("dataset.length=9", lra=False) == "budget=cpu dataset.length=9 (not the LRA set)"
    assert conditions("model.layer.measure=legs") is None
