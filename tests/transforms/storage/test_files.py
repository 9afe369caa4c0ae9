import os

import pytest

from slicebeam.metrics.errors import InputError
from slicebeam.transforms.storage.files import expand_paths
from tests.object_stores import one_line

PATTERNS = {
    "*.parquet": ["1.parquet", "2.parquet"],
    "?.parquet": ["1.parquet", "2.parquet"],
    "[2-9].parquet": ["2.parquet"],
    "[!2-9].parquet": ["1.parquet"],
    "*/*.parquet": ["day=1/3.parquet", "day=2/4.parquet"],
    "day=1/*": ["day=1/3.parquet", "day=1/x.csv"],
    "**/*.parquet": ["1.parquet", "2.parquet", "day=1/3.parquet", "day=2/4.parquet", "day=2/deep/5.parquet"],
    "day=2/**/*.parquet": ["day=2/4.parquet", "day=2/deep/5.parquet"],
    "d*/de*/*": ["day=2/deep/5.parquet"],
    "nothing*": [],
    "1.parquet": ["1.parquet"],
    "1.parque": [],
}  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.slow
def test_globs_find_the_same_everywhere(place, pattern):
    for name in [*PATTERNS["**/*.parquet"], "day=1/x.csv", "1.parquet.part", "11.parquet"]:
        place.put(name)
    wanted = sorted({*PATTERNS[pattern], *(["11.parquet"] if pattern in WIDE else [])})
    paths = sorted(str(place.folder / name) for name in wanted)
    assert sorted(str(one) for one in place.folder.glob(pattern)) == paths
    if wanted:
        assert expand_paths([f"{place.folder}/{pattern}"]) == paths
        # What is named twice is read once.
        assert expand_paths([f"{place.folder}/{pattern}"] * 2) == paths
    else:
        with pytest.raises(
            InputError, match=r"--data .*(no (file|object) matches|no such)"
        ) as error:
            expand_paths([f"{place.folder}/{pattern}"])
        one_line(error, str(place.folder), pattern)


WIDE = {"*.parquet", "**/*.parquet"}


def test_a_pipe_is_not_waited_for(tmp_path):
    pipe = tmp_path / "data.parquet"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="is a pipe or a device") as error:
        expand_paths([str(pipe)])
    one_line(error, str(pipe))


def test_data_that_is_a_folder_or_misspelt(place):
    place.put("adult.parquet")
    with pytest.raises(InputError, match="is a folder; name its files") as error:
        expand_paths([str(place.folder)])
    one_line(error, str(place.folder))
    with pytest.raises(InputError, match=r"did you mean '.*/folder/adult\.parquet'"):
        expand_paths([str(place.folder / "adlt.parquet")])
