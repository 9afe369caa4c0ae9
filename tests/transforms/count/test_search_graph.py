"""The graph of a search where its blocks are few: the tables of groups of shards are summed."""

from slicebeam.pipelines.search import counter
from slicebeam.transforms.count.tables import work_items
from tests.pipelines.search.test_same_result import OPTIONS
from tests.running import search


def test_shards_dealt_to_workers_are_summed(tmp_path, adult_path, monkeypatch):
    def found(name, **options):
        result = search(tmp_path / name, data=adult_path, **OPTIONS, **options)
        return result, result.document["search"]["iterations"][0]["shuffled_bytes"]

    plain, not_shuffled = found("plain")
    monkeypatch.setattr(
        counter, "work_items", lambda blocks, shards, *_: work_items(blocks, shards, 99.0, 99)
    )
    dealt, shuffled = found("dealt", chunk_rows=2000)
    assert dealt.slices_bytes == plain.slices_bytes
    assert dealt.timeless() == plain.timeless()
    assert shuffled > 0 == not_shuffled
