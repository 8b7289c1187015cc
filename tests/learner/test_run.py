"""What a run makes of a point of its learning curve: where it ends, and what a watcher sees."""

from oar.learner.run import earned, has_reached, held_out


def test_training_ends_where_the_curve_is_high_enough() -> None:
    assert has_reached(0.9, earned({"eval/mean/avg@1": 10.0, "eval/mean/reward@1": 0.9}))
    assert not has_reached(0.9, earned({"eval/mean/avg@1": 95.0, "eval/mean/reward@1": 0.89}))
    assert has_reached(0.9, earned({"eval/mean/avg@1": 90.0}))
    assert not has_reached(0.9, earned({}))
    assert not has_reached(None, earned({"eval/mean/avg@1": 100.0}))


def test_a_watcher_sees_the_reward_where_it_is_more_than_right_or_wrong() -> None:
    assert held_out({"eval/mean/avg@1": 0.0, "eval/mean/reward@1": 0.725}) == "held-out 0.0 %, reward 0.72"
    assert held_out({"eval/mean/avg@1": 43.2}) == "held-out 43.2 %"
    assert held_out({}) == ""
