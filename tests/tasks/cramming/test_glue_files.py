"""Laws of reading GLUE: every file of the distribution, by hand-written rows in its own columns."""

from __future__ import annotations

from pathlib import Path

import datasets
import pytest

from spectral_conditioning.errors import DataError
from spectral_conditioning.tasks.cramming.glue_files import Example, read_folder
from spectral_conditioning.tasks.cramming.glue_tasks import EIGHT, GLUE_TASKS, NINE

MNLI_TRAIN = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse\t"
    "sentence1\tsentence2\tlabel1\tgold_label"
)
MNLI_DEV = MNLI_TRAIN.replace("label1\t", "label1\tlabel2\tlabel3\tlabel4\tlabel5\t")


def mnli_row(number: int, a: str, b: str, label: str, votes: int = 1) -> str:
    votes_text = "\t".join([label] * votes)
    return f"{number}\t{number}p\t{number}e\tfiction\t( x )\t( y )\t(ROOT x)\t(ROOT y)\t{a}\t{b}\t{votes_text}\t{label}"


# Task → file → content, as in GLUE's own archive.
FILES: dict[str, dict[str, list[str]]] = {
    "CoLA": {
        "train.tsv": ["gj04\t1\t\tOur friends won't buy this.", 'gj04\t0\t*\tThey drank the pub "dry'],
        "dev.tsv": ["gj04\t1\t\tThe sailors rode the breeze.", "clc95\t0\t*\tThe more books, the."],
        "test.tsv": ["index\tsentence", "0\tBill whistled past the house."],
    },
    "SST-2": {
        "train.tsv": ["sentence\tlabel", "hide new secretions \t0", 'a "tour de force \t1'],
        "dev.tsv": ["sentence\tlabel", "it 's a charming journey . \t1"],
        "test.tsv": ["index\tsentence", "0\tuneasy mishmash"],
    },
    "MRPC": {
        "train.tsv": [
            "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
            '1\t702876\t702977\tAmrozi accused his brother, whom he called "the witness".\tReferring to him as only "the',
            "0\t2108705\t2108831\tYucaipa owned Dominick's.\tYucaipa bought it.",
        ],
        "dev.tsv": ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "1\t1\t2\tHe said so.\tSo he said."],
        "test.tsv": ["index\t#1 ID\t#2 ID\t#1 String\t#2 String", "0\t1\t2\tA.\tB."],
    },
    "STS-B": {
        "train.tsv": [
            "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
            "0\tmain-captions\tMSRvid\t2012test\t0001\tnone\tnone\tA plane is taking off.\tAn air plane is taking off.\t5.000",
            '1\tmain-news\theadlines\t2014\t0002\tnone\tnone\tA 6" pipe\tTwo pipes\t0.75',
        ],
        "dev.tsv": [
            "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
            "0\tmain-captions\tMSRvid\t2012test\t0000\tnone\tnone\tA man.\tA woman.\t2.4",
        ],
        "test.tsv": [
            "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2",
            "0\tx\ty\t2012\t0\tnone\tnone\tA.\tB.",
        ],
    },
    "QQP": {
        "train.tsv": [
            "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
            "133273\t213221\t213222\tHow is \u0085 life?\tHow can one live?\t0",
            "402555\t536040\t536041\tHow do I \u2028 control my horny emotions?\tHow do you?\t1",
        ],
        "dev.tsv": ["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "1\t2\t3\tWhy?\tWhy so?\t1"],
        "test.tsv": ["id\tquestion1\tquestion2", "0\tWhat?\tWho?"],
    },
    "MNLI": {
        "train.tsv": [
            MNLI_TRAIN,
            mnli_row(0, "Conceptually cream.", "Product and geography.", "neutral"),
            mnli_row(1, 'you know "during', "You lose the things.", "entailment"),
            mnli_row(2, "At 8:34", "It was noon.", "contradiction"),
        ],
        "dev_matched.tsv": [MNLI_DEV, mnli_row(0, "The new rights.", "Everyone likes them.", "neutral", 5)],
        "dev_mismatched.tsv": [MNLI_DEV, mnli_row(0, "Your gift.", "Hundreds of students.", "contradiction", 5)],
        "test_matched.tsv": [MNLI_TRAIN.replace("\tlabel1\tgold_label", ""), "0\t1\t2\tg\t\t\t\t\tA\tB"],
    },
    "QNLI": {
        "train.tsv": [
            "index\tquestion\tsentence\tlabel",
            '0\tWhen did the third "Digimon start?\tUnlike the two seasons.\tnot_entailment',
            "1\tWhich missile?\tThe S-300.\tentailment",
        ],
        "dev.tsv": ["index\tquestion\tsentence\tlabel", "0\tWhat came?\tAs of that day.\tentailment"],
        "test.tsv": ["index\tquestion\tsentence", "0\tWho?\tHe."],
    },
    "RTE": {
        "train.tsv": [
            "index\tsentence1\tsentence2\tlabel",
            "0\tNo weapons found.\tWeapons found.\tnot_entailment",
            "1\tA place of sorrow.\tPope Benedict XVI is the new leader.\tentailment",
        ],
        "dev.tsv": [
            "index\tsentence1\tsentence2\tlabel",
            "0\tDana Reeve died.\tReeve had an accident.\tnot_entailment",
        ],
        "test.tsv": ["index\tsentence1\tsentence2", "0\tA.\tB."],
    },
}
# What must come out: training (sentences, label), then validation (sentences, label, part).
READ: dict[str, tuple[list[Example], list[Example]]] = {
    "cola": (
        [Example(("Our friends won't buy this.",), 1), Example(('They drank the pub "dry',), 0)],
        [Example(("The sailors rode the breeze.",), 1), Example(("The more books, the.",), 0)],
    ),
    "sst2": (
        [Example(("hide new secretions ",), 0), Example(('a "tour de force ',), 1)],
        [Example(("it 's a charming journey . ",), 1)],
    ),
    "mrpc": (
        [
            Example(('Amrozi accused his brother, whom he called "the witness".', 'Referring to him as only "the'), 1),
            Example(("Yucaipa owned Dominick's.", "Yucaipa bought it."), 0),
        ],
        [Example(("He said so.", "So he said."), 1)],
    ),
    "stsb": (
        [
            Example(("A plane is taking off.", "An air plane is taking off."), 5.0),
            Example(('A 6" pipe', "Two pipes"), 0.75),
        ],
        [Example(("A man.", "A woman."), 2.4)],
    ),
    "qqp": (
        [
            Example(("How is \u0085 life?", "How can one live?"), 0),
            Example(("How do I \u2028 control my horny emotions?", "How do you?"), 1),
        ],
        [Example(("Why?", "Why so?"), 1)],
    ),
    "mnli": (
        [
            Example(("Conceptually cream.", "Product and geography."), 1),
            Example(('you know "during', "You lose the things."), 0),
            Example(("At 8:34", "It was noon."), 2),
        ],
        [
            Example(("The new rights.", "Everyone likes them."), 1, 0),
            Example(("Your gift.", "Hundreds of students."), 2, 1),
        ],
    ),
    "qnli": (
        [
            Example(('When did the third "Digimon start?', "Unlike the two seasons."), 1),
            Example(("Which missile?", "The S-300."), 0),
        ],
        [Example(("What came?", "As of that day."), 0)],
    ),
    "rte": (
        [
            Example(("No weapons found.", "Weapons found."), 1),
            Example(("A place of sorrow.", "Pope Benedict XVI is the new leader."), 0),
        ],
        [Example(("Dana Reeve died.", "Reeve had an accident."), 1)],
    ),
}


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    root = tmp_path / "glue"
    for folder, files in FILES.items():
        (root / folder).mkdir(parents=True)
        for name, rows in files.items():
            (root / folder / name).write_text("\n".join(rows) + "\n", encoding="utf-8", newline="")
    return root


def read(root: Path, key: str, *, skip: bool = False) -> tuple[list[Example], list[Example]]:
    return read_folder(str(root), key, GLUE_TASKS[key], skip_bad_rows=skip)


@pytest.mark.parametrize("key", GLUE_TASKS)
def test_every_task_is_read_as_distributed(glue: Path, key: str) -> None:
    assert read(glue, key) == READ[key]
    # The task's own folder does as well, and so do Windows line ends.
    folder = glue / GLUE_TASKS[key].folder
    for file in folder.glob("*.tsv"):
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert read(folder, key) == READ[key]


@pytest.mark.parametrize("key", GLUE_TASKS)
def test_parquet_of_the_published_tables_gives_the_same(glue: Path, tmp_path: Path, key: str) -> None:
    """Integer labels with names, one folder a task, as nyu-mll/glue has them."""
    task = GLUE_TASKS[key]
    train, val = READ[key]
    names = [columns[-1 if key == "mrpc" else 0] for columns in task.sentences]
    if key == "mnli":
        names = ["premise", "hypothesis"]
    label = datasets.ClassLabel(names=list(task.labels)) if task.labels else datasets.Value("float32")
    splits = {"train": train, "validation": val}
    if key == "mnli":
        splits = {"train": train, "validation_matched": val[:1], "validation_mismatched": val[1:]}
    for split, rows in splits.items():
        columns = {name: [row.sentences[i] for row in rows] for i, name in enumerate(names)}
        features = datasets.Features({name: datasets.Value("string") for name in names} | {"label": label})
        labels = [row.label if task.regression else int(row.label) for row in rows]
        table = datasets.Dataset.from_dict({**columns, "label": labels}, features=features)
        path = tmp_path / "hub" / key / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        table.to_parquet(str(path))
    found_train, found_val = read(tmp_path / "hub", key)
    for found, wanted in zip([*found_train, *found_val], [*train, *val], strict=True):
        assert (found.sentences, found.part) == (wanted.sentences, wanted.part)
        assert found.label == pytest.approx(wanted.label)


def test_names_decide_where_a_table_numbers_its_labels_otherwise(tmp_path: Path) -> None:
    """MNLI tables exist with contradiction first; a model scored by number would be right 4 % of the time."""
    features = datasets.Features(
        {
            "premise": datasets.Value("string"),
            "hypothesis": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["contradiction", "entailment", "neutral"]),
        }
    )
    for split in ("train", "validation_matched"):
        table = datasets.Dataset.from_dict(
            {"premise": ["a", "b", "c"], "hypothesis": ["x", "y", "z"], "label": [0, 1, 2]}, features=features
        )
        table.to_parquet(str(tmp_path / f"{split}-00000.parquet"))
    train, _ = read(tmp_path, "mnli")
    assert [example.label for example in train] == [2, 0, 1]


def spoil(path: Path, line: int, text: str) -> None:
    rows = path.read_text(encoding="utf-8").split("\n")
    rows[line - 1] = text
    path.write_text("\n".join(rows), encoding="utf-8", newline="")


def test_every_bad_row_is_named_and_may_be_skipped(glue: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = glue / "QQP/train.tsv"
    with open(path, "a", encoding="utf-8") as file:
        file.write("7\t8\t9\tcut off\n10\t11\t12\tWhat?\tWhy?\tmaybe\n13\t14\t15\t\tempty\t1\n")
    with pytest.raises(DataError) as caught:
        read(glue, "qqp")
    said = str(caught.value)
    assert "QQP/train.tsv has bad rows" in said
    assert "row 4: 4 fields, expected 6" in said
    assert "row 5: label 'maybe'; allowed: not_duplicate, duplicate or 0 to 1" in said
    assert "row 6: an empty sentence" in said
    assert read(glue, "qqp", skip=True) == READ["qqp"]
    assert "rows skipped" in caplog.text
    assert "row 4" in caplog.text


@pytest.mark.parametrize(
    ("key", "file", "line", "text", "message"),
    [
        ("mnli", "dev_matched.tsv", 2, mnli_row(0, "A", "B", "-1", 5), "row 2: label '-1'.*test rows are not scored"),
        ("mnli", "train.tsv", 3, mnli_row(0, "A", "B", "-"), "row 3: label '-'"),
        ("stsb", "dev.tsv", 2, "0\tx\ty\t2012\t0\tn\tn\tA\tB\t-1", r"score -1 lies outside \[0, 5\]"),
        ("stsb", "dev.tsv", 2, "0\tx\ty\t2012\t0\tn\tn\tA\tB\tnan", "score nan lies outside"),
        ("rte", "dev.tsv", 2, "0\tA\tB\tneutral", "label 'neutral'; allowed: entailment, not_entailment"),
        ("sst2", "dev.tsv", 2, "good\t2", "label '2'"),
    ],
)
def test_labels_that_a_task_does_not_have(glue: Path, key: str, file: str, line: int, text: str, message: str) -> None:
    spoil(glue / GLUE_TASKS[key].folder / file, line, text)
    with pytest.raises(DataError, match=message):
        read(glue, key)


@pytest.mark.parametrize("key", GLUE_TASKS)
def test_unlabelled_test_files_are_never_scored(glue: Path, key: str) -> None:
    folder = glue / GLUE_TASKS[key].folder
    test = next(folder.glob("test*.tsv"))
    next(folder.glob("dev*.tsv")).write_bytes(test.read_bytes())
    with pytest.raises(DataError, match="cannot be scored"):
        read(glue, key)


def test_missing_files_and_columns_are_named(glue: Path, tmp_path: Path) -> None:
    (glue / "RTE/dev.tsv").unlink()
    with pytest.raises(DataError, match="none of dev, validation for RTE"):
        read(glue, "rte")
    spoil(glue / "QNLI/train.tsv", 1, "index\tq\tsentence\tlabel")
    with pytest.raises(DataError, match="no column 'question' for QNLI; it has index, q, sentence, label"):
        read(glue, "qnli")
    with pytest.raises(DataError, match=r"neither CoLA/ nor cola/ nor a train\.tsv"):
        read(tmp_path, "cola")


def test_a_single_development_file_is_the_matched_part(glue: Path) -> None:
    folder = glue / "MNLI"
    (folder / "dev_mismatched.tsv").unlink()
    (folder / "dev_matched.tsv").rename(folder / "dev.tsv")
    _, val = read(folder, "mnli")
    assert val == READ["mnli"][1][:1]


def test_nine_numbers_are_counted() -> None:
    """The published average takes MNLI twice: 78.6 is the mean of the nine of the first release, 77.9 of eight."""
    first_release = [44.5, 92.2, 87.5, 84.6, 87.3, 83.9, 84.1, 89.5, 53.8]
    assert [task for task, _ in NINE] == ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "mnli", "qnli", "rte"]
    assert round(sum(first_release) / len(NINE), 1) == 78.6
    assert round((sum(first_release) - 84.1) / len(EIGHT), 1) == 77.9
