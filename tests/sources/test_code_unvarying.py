"""What is done anew for each item though it does not depend on it: by the text of the program."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from stallmeter.sources.code.fold import Frame, Seen, fold
from stallmeter.sources.code.unvarying import unvarying
from stallmeter.sources.code.whose import Function

ITEM = "Items.__getitem__"
FETCH = Frame(Function("fetch", "torch/utils/data/_utils/fetch.py", own=False), 30)


def _library(dotted: str) -> Frame:
    return Frame(Function(dotted.rpartition(".")[2], f"{dotted.partition('.')[0]}/x.py", own=False, dotted=dotted))


def _of(tmp_path: Path, text: str, *names: str | Frame) -> list[Seen]:
    """Return what is found of one stack: functions of a file by their names, the last line with ``# <`` of each."""
    lines = textwrap.dedent(text).split("\n")
    path = tmp_path / f"data{len(list(tmp_path.iterdir()))}.py"  # what was read of a file is kept
    path.write_text("\n".join(lines))

    def frame(name: str) -> Frame:
        plain = name.rpartition(".")[2]
        first = next(i for i, line in enumerate(lines, start=1) if f"def {plain}(" in line)
        first -= lines[first - 2].lstrip().startswith("@")
        marked = [i for i, line in enumerate(lines, start=1) if i >= first and "# <" in line]
        return Frame(Function(name, "data.py", own=True, first_line=first), marked[0] if marked else 0, path=str(path))

    stack = tuple(one if isinstance(one, Frame) else frame(one) for one in names)
    return unvarying([Seen((FETCH, *stack), 0.5, 0.5)])


READ_CSV, LOAD, FILE = (_library(one) for one in ("pandas.read_csv", "numpy.load", "h5py.File.__init__"))

SAME = {
    "an attribute": ("return read_csv(self.path).iloc[i]  # <", READ_CSV),
    "a name of the module": ("table = pd.read_csv(PATH)  # <\n    return table.iloc[i]", READ_CSV),
    "made of attributes": (
        'path = os.path.join(self.root, f"{self.split}.npy")\n    return np.load(path)[i]  # <',
        LOAD,
    ),
    "a class": ("with h5py.File(self.path) as file:  # <\n        return file[self.keys[i]][()]", FILE),
    "a file that it opens": (
        "with open(self.path) as f:\n        return json.load(f)[i]  # <",
        _library("json.load"),
    ),
    "over several lines": ("return np.load(  # <\n        self.path,\n        mmap_mode='r',\n    )[i]", LOAD),
    "a filter": ("return lfilter(firwin(64, self.cut), 1, self.x[i])  # <", _library("scipy.signal.firwin")),
    "each of several": ("for name in self.names:\n        tables = np.load(name)  # <\n    return tables[i]", LOAD),
}

OTHER = {
    "a path of its own": ("return np.load(self.paths[i])  # <", LOAD),
    "a path made of the item's": ("name = self.names[i]\n    return np.load(self.root / name)  # <", LOAD),
    "a name in a loop over what is its own": ("for p in self.paths[i]:\n        x = np.load(p)  # <", LOAD),
    "a list with something of the item": ("names = []\n    names.append(i)\n    return np.load(names)  # <", LOAD),
    "an attribute that it sets": ("self.now = self.paths[i]\n    return np.load(self.now)  # <", LOAD),
    "drawn": ("return np.load(random.choice(self.paths))  # <", LOAD),
    "the next one": ("return np.load(next(self.paths))  # <", LOAD),
    "kept": ("if self.t is None:\n        self.t = np.load(self.path)  # <\n    return self.t[i]", LOAD),
    "kept by another name": ("t = np.load(self.path)  # <\n    self.known[0] = t\n    return t[i]", LOAD),
    "further on in an open file": ("return pickle.load(self.file)  # <", _library("pickle.load")),
    "not known to read": ("return simulate(self.size)[i]  # <", _library("physics.simulate")),
    "in a generator": ("for row in pd.read_csv(self.path):  # <\n        yield row", READ_CSV),
    "a method of the item": ("return self.items[i].load()  # <", _library("shelf.Item.load")),
}


def _item(body: str) -> str:
    return "class Items:\n  def __getitem__(self, i):\n    " + body


@pytest.mark.parametrize("how", SAME)
def test_what_is_given_the_same_is_found(tmp_path, how):
    body, call = SAME[how]
    [found] = _of(tmp_path, _item(body), ITEM, call, _library("x.inner"))
    assert found.stack[-1] is call, "what lies beneath it is its own"
    [spot] = fold([found]).spots
    assert spot.function == ITEM
    assert spot.call_in_line == call.function.dotted


@pytest.mark.parametrize("how", OTHER)
def test_what_depends_on_the_item_or_is_kept_is_not(tmp_path, how):
    body, call = OTHER[how]
    assert _of(tmp_path, _item(body), ITEM, call) == []


HELPER = """
class Items:
  def __getitem__(self, i):
    return self.bank(self.rate, 80) @ self.x[i]  # <
{decorated}  def bank(self, rate, n):
    {body}
"""


def _helped(tmp_path: Path, body: str, *beneath: str | Frame, decorated: str = "") -> list[Seen]:
    return _of(tmp_path, HELPER.format(body=body, decorated=decorated), ITEM, "Items.bank", *beneath)


def test_a_function_of_the_users_is_read(tmp_path):
    """It is named itself, whatever it calls."""
    body = "bank = []\n    for k in range(n):\n        bank.append(np.hanning(k))  # <\n    return bank"
    [found] = _helped(tmp_path, body, _library("numpy.hanning"))
    [spot] = fold([found]).spots
    assert (spot.function, spot.calls) == ("Items.bank", ())


@pytest.mark.parametrize(
    ("body", "beneath"),
    [
        ("return rng.integers(n)  # <", ()),
        ("self.made = np.hanning(n)  # <", ()),
        ("return make(n)  # <", (_library("numpy.random.rand"),)),
        ("return self.client.fetch()  # <", ()),
        ("self.seen.append(n)\n    return n  # <", ()),
        ("global COUNT\n    COUNT += 1\n    return n  # <", ()),
    ],
)
def test_a_function_that_draws_or_leaves_something_behind_is_another_one_each_time(tmp_path, body, beneath):
    assert _helped(tmp_path, body, *beneath) == []


def test_what_a_decorator_keeps_is_called_once(tmp_path):
    assert _helped(tmp_path, "return np.hanning(n)  # <")
    assert _helped(tmp_path, "return np.hanning(n)  # <", decorated="  @lru_cache\n") == []


def test_what_a_function_is_given_the_same_it_gives_on(tmp_path):
    """The one around it sets an attribute and is not named, what it reads is."""
    body = "self.calls = 1\n    return np.load(rate)  # <"
    [found] = _helped(tmp_path, body, LOAD)
    assert found.stack[-1] is LOAD
    text = HELPER.format(body="self.calls = 1\n    return np.load(rate)  # <", decorated="")
    assert _of(tmp_path, text.replace("self.rate", "self.rates[i]"), ITEM, "Items.bank", LOAD) == []


def test_of_a_function_that_a_library_calls_nothing_is_known(tmp_path):
    text = _item("return np.load(self.path)  # <") + "\ndef collate(path):\n  return np.load(path)  # <\n"
    assert _of(tmp_path, text, ITEM, _library("x.map"), "collate", LOAD) == []


@pytest.mark.parametrize("text", ["", "class Items:\n  def __getitem__(self, i):\n   broken(\n"])
def test_text_that_cannot_be_read_says_nothing(tmp_path, text):
    path = tmp_path / "data.py"
    path.write_text(text)
    at = Frame(Function(ITEM, "data.py", own=True, first_line=2), 3, path=str(path))
    gone = Frame(Function(ITEM, "gone.py", own=True, first_line=2), 3, path=str(tmp_path / "gone.py"))
    assert unvarying([Seen((at, LOAD), 0.5), Seen((gone, LOAD), 0.5), Seen((FETCH, LOAD), 0.5), Seen((at,), 0.5)]) == []
