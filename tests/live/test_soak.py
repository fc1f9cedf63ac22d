"""The short version of `make soak`: hundreds of faults of every kind in one run, and nothing is lost."""

from tests.live.soak import soak


def test_R1_hundreds_of_faults_of_every_kind_in_one_run_are_survived(tmp_path):
    """R1, R2, P1, E2, E6, E7: every complete snapshot verifies and has each message once; nothing is left behind.

    The blobs that were damaged on purpose, and the snapshots that have them, are found, and no others.
    """
    done = soak(tmp_path, "mixed", seed=4, seconds=18, faults=200, each=3)
    assert done.injected.total() >= 200
    assert all(done.injected[kind] >= 3 for kind in done.kinds), done.injected
    assert len(done.checked) >= 20
    assert done.lines > 0
