"""One thread for products of matrices, whoever asks for it, and as many as before afterwards."""

import threading

from threadpoolctl import threadpool_info, threadpool_limits

from fedpoint.core.threads import one_thread


def threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_one_thread_inside_and_as_many_afterwards_as_before():
    entered, leave = threading.Event(), threading.Event()

    @one_thread
    def long():
        entered.set()
        assert leave.wait(60)

    with threadpool_limits(2, user_api="blas"):
        assert one_thread(one_thread(threads))() == {1}
        assert threads() == {2}
        other = threading.Thread(target=long)
        other.start()
        assert entered.wait(60)
        assert one_thread(threads)() == {1}  # while another thread is at work
        leave.set()
        other.join(60)
        assert threads() == {2}
