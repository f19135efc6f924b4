"""Published data sets in their genuine layouts: tiny files written here, and the real ones where they lie."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recoup.log import (
    AvazuLog,
    CriteoLog,
    EbnerdLog,
    KuaiRandLog,
    LogError,
    MindLog,
    OpenBanditLog,
    RecBoleLog,
    movielens_folder,
    open_log,
)
from recoup.schema import sample_schema

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


def read(config):
    source = open_log(config)
    batches = list(source.batches(batch_samples=1000))
    assert all(batch.schema == sample_schema(source.schema) and batch.num_rows <= 1000 for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def write(folder, **files):
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


# --- RecBole -------------------------------------------------------------------------------------------------------


INTER = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"


def write_recbole(folder, **overrides):
    files = {
        "tiny__inter": INTER + "1\t10\t4\t881250949\n2\t11\t3.5\t891717742.5\n1\t99\t5\t881250950\n",
        "tiny__user": "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token\n"
        "1\t24\tM\ttechnician\t85711\n2\t53\tF\tother\t94043\n",
        "tiny__item": "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
        '10\tToy "Story"\t1995\tAnimation Children\'s Comedy\n11\tunknown\tunkonwn\tunknown\n12\tX\t\t\n',
    }
    write(folder, **{**files, **overrides})
    return RecBoleLog(path=str(folder), name="tiny")


def test_recbole_joins_users_and_items(tmp_path):
    """Ratings carry their user's and item's features; blanks, odd tokens and unknown items are absent."""
    config = write_recbole(tmp_path)
    rows = read(config)
    assert rows[0] == {
        "user": 1,
        "time": 881250949000,
        "label": 1.0,
        "user_id": [1],
        "age": [1],
        "gender": [1],
        "occupation": [1],
        "item_id": [10],
        "class": [0, 1, 2],
        "release_year": [1995],
    }
    assert (rows[1]["label"], rows[1]["time"], rows[1]["age"]) == (0.0, 891717742500, [5])
    assert (rows[1]["release_year"], rows[1]["class"]) == ([], [3])
    assert (rows[2]["item_id"], rows[2]["class"], rows[2]["release_year"]) == ([99], [], [])
    assert open_log(config).describe()["vocabularies"]["class"] == ["Animation", "Children's", "Comedy", "unknown"]


def test_recbole_fields_can_be_numbers(tmp_path):
    """A field read as a number is a dense feature beside its IDs, 0 where unknown; an unknown field is refused."""
    path = write_recbole(tmp_path).path
    rows = read(RecBoleLog(path=path, name="tiny", numbers=("age", "release_year")))
    assert [(row["age_value"], row["release_year_value"]) for row in rows] == [(24, 1995), (53, 0), (24, 0)]
    with pytest.raises(LogError, match="expected a field 'size' to read as a number"):
        read(RecBoleLog(path=path, name="tiny", numbers=("size",)))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"tiny__inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float\n1\t10\t4\n"},
            "got 3.*tiny.inter",
        ),
        ({"tiny__inter": "user_id\titem_id\n"}, r"expected header fields.*got 'user_id' \(file '.*tiny.inter"),
        ({"tiny__inter": "user_id:token\titem_id:token\trating:float\n1\t1\t4\n"}, "expected field 'timestamp'"),
        (
            {"tiny__inter": INTER + "u7\t10\t4\t5\n"},
            r"expected int64, got 'u7' \(file '.*tiny.inter', row 0, column 'user_id'\)",
        ),
        (
            {"tiny__user": "user_id:token\tage:token\tgender:token\toccupation:token\n1\t24\tM\tx\n1\t25\tM\tx\n"},
            r"expected one row a key, got 1 again \(file '.*tiny.user', row 1, column 'user_id'\)",
        ),
    ],
)
def test_damaged_recbole_files_are_refused(tmp_path, files, message):
    """A short line, a header without types, a missing field, a text ID, a user twice: one line each."""
    with pytest.raises(LogError, match=message):
        read(write_recbole(tmp_path, **files))


def test_recbole_text_ids_can_be_hashed(tmp_path):
    """With `hash_ids` any token is an ID, the same in all three files."""
    config = write_recbole(tmp_path)
    rows = read(RecBoleLog(path=config.path, name="tiny", hash_ids=True))
    assert rows[0]["user"] == rows[2]["user"] != rows[1]["user"]
    assert rows[0]["class"] == [0, 1, 2]


def test_movielens_from_the_wheel():
    """The 100,000 ratings of the recbole wheel read without importing it."""
    try:
        folder = movielens_folder()
    except LogError as err:
        pytest.skip(str(err))
    rows = read(RecBoleLog(path=str(folder)))
    assert len(rows) == 100_000
    assert len({row["user"] for row in rows}) == 943
    assert sum(row["label"] for row in rows) == 55_375
    assert {len(row["gender"]) for row in rows} == {1}
    assert sum(not row["release_year"] for row in rows) == 15
    assert max(len(row["class"]) for row in rows) == 6


# --- KuaiRand ------------------------------------------------------------------------------------------------------

LOG_HEADER = (
    "user_id,video_id,date,hourmin,time_ms,is_click,is_like,is_follow,is_comment,is_forward,is_hate,long_view,"
    "play_time_ms,duration_ms,profile_stay_time,comment_stay_time,is_profile_enter,is_rand,tab\n"
)
LOG_ROW = "0,5,20220425,0,1650812741436,1,0,0,0,0,0,1,61802,49866,0,0,0,0,1\n"


def write_kuairand(folder, log=None):
    onehot = ",".join(f"onehot_feat{i}" for i in range(18))
    users = (
        "user_id,user_active_degree,is_lowactive_period,is_live_streamer,is_video_author,follow_user_num,"
        "follow_user_num_range,fans_user_num,fans_user_num_range,friend_user_num,friend_user_num_range,register_days,"
        f"register_days_range,{onehot}\n"
        '0,full_active,0,-124,1,457,"(250,500]",20,"[10,100)",3,"[1,5)",1474,730+,1,3,2,1160,4.0,0,0,31,283,6,2,2,'
        "1.0,0.0,1.0,0.0,0.0,0.0\n"
        "1,UNKNOWN,0,1,0,0,0,0,0,0,0,14,8-14,0,0,0,0,,0,0,0,0,0,0,0,,,,,,\n"
    )
    videos = (
        "video_id,author_id,video_type,upload_dt,upload_type,visible_status,video_duration,server_width,server_height,"
        "music_id,music_type,tag\n"
        '5,7349781,NORMAL,2022-04-10,LongImport,0.0,87433.0,720.0,1280.0,9155697141,9.0,"12,65"\n'
        "6,1,AD,2022-04-10,Web,0.0,,720.0,1280.0,0,,\n"
    )
    text = log if log is not None else LOG_HEADER + LOG_ROW + LOG_ROW + LOG_ROW.replace("0,5,", "1,6,", 1)
    (folder / "log_standard_x.csv.gz").write_bytes(gzip.compress(text.encode()))
    (folder / "user_features_x.csv").write_text(users)
    (folder / "video_features_basic_x.csv").write_text(videos)
    return KuaiRandLog(path=str(folder))


def test_kuairand_reads_its_oddities(tmp_path):
    """-124 and blanks are absent, quoted ranges are one token, tags are several IDs, music IDs exceed 32 bits."""
    rows = read(write_kuairand(tmp_path))
    first, repeat, other = rows
    assert (first["user"], first["time_ms"], first["is_click"], first["long_view"]) == (0, 1650812741436, 1.0, 1.0)
    assert first["is_live_streamer"] == []
    assert (first["tag"], first["music_id"], first["onehot_feat4"]) == ([12, 65], [9155697141], [4])
    assert (other["tag"], other["music_type"], other["onehot_feat4"], other["video_duration"]) == ([], [], [], 0.0)
    words = open_log(write_kuairand(tmp_path)).describe()["vocabularies"]["follow_user_num_range"]
    assert words[first["follow_user_num_range"][0]] == "(250,500]"
    assert first == repeat
    assert first["event_id"] != other["event_id"]


def test_kuairand_event_ids_tell_whole_rows_apart_L06(tmp_path):
    """Rows that differ only in play time are two events; exact repeats are one."""
    changed = LOG_ROW.replace("61802", "61803")
    rows = read(write_kuairand(tmp_path, LOG_HEADER + LOG_ROW + changed + LOG_ROW))
    assert rows[0]["event_id"] == rows[2]["event_id"] != rows[1]["event_id"]


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (LOG_HEADER + LOG_ROW + "1,2,3\n", r"Row #3: Expected 19 columns, got 3"),
        (LOG_HEADER.replace("time_ms", "ms") + LOG_ROW, "expected column 'time_ms'"),
        (LOG_HEADER + LOG_ROW.replace("0,5", "u,5", 1), r"expected int64, got 'u' \(.*row 0, column 'user_id'\)"),
        (LOG_HEADER + LOG_ROW.replace(",1,0,0,", ",yes,0,0,", 1), r"got 'yes' \(.*row 0, column 'is_click'\)"),
        (LOG_HEADER + LOG_ROW.replace("0,5", ",5", 1), r"expected an ID, got an empty field.*column 'user_id'"),
        ("", "log_standard_x.csv.gz"),
    ],
)
def test_damaged_kuairand_logs_are_refused_F08(tmp_path, log, message):
    """A short line, a renamed column, text in a number, a blank ID and an empty file name their place."""
    with pytest.raises(LogError, match=message):
        read(write_kuairand(tmp_path, log))


def test_a_cut_archive_is_refused_at_every_sixteenth_F08(tmp_path):
    """A truncated .gz never reads as a shorter log."""
    config = write_kuairand(tmp_path)
    path = tmp_path / "log_standard_x.csv.gz"
    whole = path.read_bytes()
    for sixteenth in range(16):
        path.write_bytes(whole[: len(whole) * sixteenth // 16])
        with pytest.raises(LogError, match=r"log_standard_x.csv.gz"):
            read(config)


def test_real_kuairand():
    """228,329 rows, 5,460 of them exact repeats; the real users' and videos' features join all of them."""
    if not (SHARED / "kuairand").is_dir():
        pytest.skip("needs ../shared/data/kuairand")
    source = open_log(KuaiRandLog(path=str(SHARED / "kuairand")))
    columns = ["user", "time_ms", "event_id", "video_id", "tag", "is_live_streamer"]
    table = pa.Table.from_batches(source.batches(columns))
    assert table.num_rows == 228_329
    assert table.num_rows - len(table["event_id"].unique()) == 5_460
    assert len(table["user"].unique()) == 25_156
    assert np.any(np.diff(table["time_ms"].to_numpy()) < 0)
    assert -124 not in table["is_live_streamer"].combine_chunks().flatten().to_pylist()


# --- Criteo --------------------------------------------------------------------------------------------------------


def criteo_line(label="1", counts=("1",) * 13, categories=("68fd1e64",) * 26):
    return "\t".join([label, *counts, *categories]) + "\n"


def test_criteo_reads_blanks_and_negative_counts(tmp_path):
    """40 fields; blank counts are 0, blank categories absent even at the line's end; negatives stay."""
    text = criteo_line() + criteo_line("0", ("", "-3", "0", *("5",) * 10), ("ffffffff", *("a",) * 24, ""))
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress(text.encode()))
    first, second = read(CriteoLog(path=str(tmp_path)))
    assert (first["click"], first["I1"], first["C1"]) == (1.0, 1.0, [0x68FD1E64])
    assert (second["I1"], second["I2"], second["C1"], second["C26"]) == (0.0, -3.0, [2**32 - 1], [])
    assert (first["line"], second["line"], second["time"]) == (0, 1, 1)


def test_criteo_days_keep_their_order_F11(tmp_path):
    """day_2 comes before day_10, and lines of every file have keys of their own."""
    for day, label in ((10, "1"), (2, "0")):
        (tmp_path / f"day_{day}").write_text(criteo_line(label) * 2)
    rows = read(CriteoLog(path=str(tmp_path)))
    assert [row["click"] for row in rows] == [0.0, 0.0, 1.0, 1.0]
    assert len({row["line"] for row in rows}) == 4
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (criteo_line()[2:], r"Expected 40 columns, got 39"),
        (criteo_line() + criteo_line().replace("\n", "\tx\n"), r"Row #2: Expected 40 columns, got 41"),
        (criteo_line(categories=("xyz",) * 26), r"expected int64, got '0xxyz' \(.*row 0, column 'C1'\)"),
        (criteo_line(counts=("one",) * 13), r"expected a number, got 'one' \(.*row 0, column 'I1'\)"),
        (criteo_line(label=""), r"expected a number, got null \(.*row 0, column 'click'\)"),
    ],
)
def test_damaged_criteo_lines_are_refused_F08(tmp_path, text, message):
    """A test file without labels, a long line, a bad category, count or label name their place."""
    (tmp_path / "train.txt").write_text(text)
    with pytest.raises(LogError, match=message):
        read(CriteoLog(path=str(tmp_path / "train.txt")))


# --- MIND ----------------------------------------------------------------------------------------------------------

NEWS = (
    'N1\tsports\tgolf\tA "title"\tabstract\thttp\t[]\t[]\n'
    "N2\tnews\tworld\tB\t\thttp\t[]\t[]\n"
    "N3\tnews\tgolf\tC\t\t\t\t\n"
)


def write_mind(folder, behaviors):
    write(folder, behaviors__tsv=behaviors, news__tsv=NEWS)
    return MindLog(path=str(folder))


def test_mind_makes_one_sample_a_shown_article(tmp_path):
    """Candidates become samples with their click; the history, blank for new users, repeats for each."""
    text = "1\tU13740\t11/11/2019 9:05:58 AM\tN1 N2\tN3-1 N2-0\n2\tU91836\t11/12/2019 6:11:30 PM\t\tN1-0\n"
    rows = read(write_mind(tmp_path, text))
    assert [(row["user"], row["news"], row["click"], row["history"]) for row in rows] == [
        (13740, [3], 1.0, [1, 2]),
        (13740, [2], 0.0, [1, 2]),
        (91836, [1], 0.0, []),
    ]
    assert [row["time"] for row in rows] == [1573463158000, 1573463158000, 1573582290000]
    assert [(row["category"], row["subcategory"]) for row in rows] == [([0], [0]), ([0], [1]), ([1], [0])]
    assert len({row["event_id"] for row in rows}) == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "1\tU1\t11/11/2019 9:05:58 AM\tN1\tN3 N2\n",
            r"expected N<number>-<0 or 1>, got 'N3' .*row 0, column 'shown'",
        ),
        ("1\tU1\t2019-11-11\tN1\tN3-0\n", r"expected a time such as .*, got '2019-11-11' \(.*row 0, column 'time'\)"),
        ("1\t7\t11/11/2019 9:05:58 AM\tN1\tN3-0\n", r"expected U<number>, got '7' \(.*row 0, column 'user'\)"),
        ("1\tU1\t11/11/2019 9:05:58 AM\tN1 X\tN3-0\n", r"expected N<number>, got 'X' \(.*row 0, column 'history'\)"),
        ("1\tU1\t11/11/2019 9:05:58 AM\tN3-0\n", "Expected 5 columns, got 4"),
    ],
)
def test_damaged_mind_lines_are_refused_F08(tmp_path, line, message):
    """A test split without labels, another time format, bad IDs and a short line name their place."""
    with pytest.raises(LogError, match=message):
        read(write_mind(tmp_path, line))


# --- EB-NeRD -------------------------------------------------------------------------------------------------------


def write_ebnerd(folder):
    rows = 3
    pq.write_table(
        pa.table(
            {
                "impression_id": pa.array([9, 10, 11], pa.uint32()),
                "article_id": pa.array([None, 700, None], pa.int32()),
                "impression_time": pa.array([1_677_468_207_000_000] * rows, pa.timestamp("us")),
                "device_type": pa.array([2] * rows, pa.int8()),
                "article_ids_inview": pa.array([[1, 2, 3], [2, 1], []], pa.large_list(pa.int32())),
                "article_ids_clicked": pa.array([[2], [1, 2], []], pa.large_list(pa.int32())),
                "user_id": pa.array([5, 5, 6], pa.uint32()),
                "is_sso_user": [True, True, False],
                "gender": pa.array([0, None, None], pa.int8()),
                "postcode": pa.nulls(rows, pa.int8()),
                "age": pa.array([40, None, None], pa.int8()),
                "is_subscriber": [False] * rows,
                "session_id": pa.array([70, 70, 71], pa.uint32()),
            }
        ),
        folder / "behaviors.parquet",
    )
    history = pa.table({"user_id": pa.array([5], pa.uint32()), "article_id_fixed": pa.array([list(range(60))])})
    pq.write_table(history, folder / "history.parquet")
    return EbnerdLog(path=str(folder), history=3)


def test_ebnerd_makes_one_sample_a_candidate(tmp_path):
    """Candidates are marked clicked by membership, histories keep the last articles, nulls are absent."""
    rows = read(write_ebnerd(tmp_path))
    assert [(row["article_id"], row["click"]) for row in rows] == [
        ([1], 0.0),
        ([2], 1.0),
        ([3], 0.0),
        ([2], 1.0),
        ([1], 1.0),
    ]
    assert {tuple(row["history"]) for row in rows} == {(57, 58, 59)}
    assert (rows[0]["session"], rows[0]["time"], rows[0]["page_article_id"]) == (70, 1677468207000, [])
    assert (rows[3]["page_article_id"], rows[3]["gender"], rows[3]["is_sso_user"]) == ([700], [], [1])
    assert {row["session"] for row in read(EbnerdLog(path=str(tmp_path), key="user_id"))} == {5}


def test_damaged_ebnerd_files_are_refused_F08(tmp_path):
    """A missing file, a missing column and a cut file are one line with the path."""
    config = write_ebnerd(tmp_path)
    path = tmp_path / "behaviors.parquet"
    whole = path.read_bytes()
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["session_id"]), path)
    with pytest.raises(LogError, match=r"expected column 'session_id'.*behaviors.parquet"):
        read(config)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LogError, match=r"behaviors.parquet"):
        read(config)
    path.unlink()
    with pytest.raises(LogError, match="expected an EB-NeRD file, got nothing"):
        read(config)


def test_real_ebnerd():
    """The fixture's 1,046 impressions are 10,848 samples in 485 sessions."""
    if not (SHARED / "ebnerd").is_dir():
        pytest.skip("needs ../shared/data/ebnerd")
    rows = read(EbnerdLog(path=str(SHARED / "ebnerd")))
    assert (len(rows), len({row["session"] for row in rows})) == (10_848, 485)
    assert sum(row["click"] for row in rows) == 1_047
    assert len({row["event_id"] for row in rows}) == len(rows)


# --- Avazu and Open Bandit -------------------------------------------------------------------------------------------

AVAZU = (
    "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,device_ip,"
    "device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21\n"
)
AVAZU_ROW = (
    "{id},0,14102100,1005,0,1fbe01fe,f3845767,28905ebd,ecad2386,7801e8d9,07d7df22,{device},ddd2926e,44956a24,1,2,15706,"
    "320,50,1722,0,35,-1,79\n"
)


def test_avazu_keeps_unsigned_event_ids_J23(tmp_path):
    """IDs beyond int64 stay distinct text; devices without an ID are told apart by address and model; -1 is absent."""
    rows_in = [(2**63 + 1, "a99f214a"), (2**64 - 1, "c357dbff"), (1000009418151094273, "a99f214a")]
    (tmp_path / "train.csv").write_text(AVAZU + "".join(AVAZU_ROW.format(id=i, device=d) for i, d in rows_in))
    rows = read(AvazuLog(path=str(tmp_path)))
    assert [row["id"] for row in rows] == [str(i) for i, _ in rows_in]
    assert [row["device"] for row in rows] == ["ddd2926e-44956a24", "c357dbff", "ddd2926e-44956a24"]
    assert (rows[0]["time"], rows[0]["C20"], rows[0]["C21"], rows[0]["site_id"]) == (
        1413849600000,
        [],
        [79],
        [0x1FBE01FE],
    )
    (tmp_path / "train.csv").write_text(AVAZU + AVAZU_ROW.format(id=1, device="zz"))
    with pytest.raises(LogError, match=r"got '0xzz' \(.*row 0, column 'device_id'\)"):
        read(AvazuLog(path=str(tmp_path)))
    (tmp_path / "train.csv").write_text(AVAZU + AVAZU_ROW.format(id=1, device="0").replace("14102100", "2014"))
    with pytest.raises(LogError, match=r"expected an hour as YYMMDDHH, got '2014' \(.*row 0, column 'hour'\)"):
        read(AvazuLog(path=str(tmp_path)))


def test_open_bandit_joins_items(tmp_path):
    """Hashed user features make the key; item features join by item; times carry their zone."""
    affinities = ",".join(f"user-item_affinity_{i}" for i in range(80))
    header = ",timestamp,item_id,position,click,propensity_score,"
    header += ",".join(f"user_feature_{i}" for i in range(4)) + "," + affinities
    row = "{n},2019-11-24 00:00:13.004101+00:00,{item},3,1,0.0125,81ce,03a5,4a2d,{last}," + ",".join(["0.5"] * 80)
    lines = [row.format(n=0, item=1, last="c39b"), row.format(n=1, item=7, last="d03b")]
    write(
        tmp_path,
        all__csv="\n".join([header, *lines]) + "\n",
        item_context__csv=",item_id,item_feature_0,item_feature_1,item_feature_2,item_feature_3\n"
        "0,0,-0.677,4129,6c,c0\n1,1,-0.72,4129,6c,c1\n",
    )
    first, second = read(OpenBanditLog(path=str(tmp_path)))
    assert (first["time"], first["click"], first["position"]) == (1574553613004, 1.0, [3])
    assert first["item_feature_0"] == pytest.approx(-0.72)
    assert (second["item_feature_1"], second["item_feature_0"]) == ([], 0.0)
    assert first["user"] != second["user"]
    assert first["user_feature_0"] == second["user_feature_0"]
    assert read(OpenBanditLog(path=str(tmp_path), affinities=True))[0]["user-item_affinity_79"] == 0.5
    with pytest.raises(LogError, match=r"expected a file named men.csv or men.csv.gz"):
        open_log(OpenBanditLog(path=str(tmp_path), campaign="men"))
