"""For kube_apiserver.py: what happens to observers, and to those that feed them, while kube-apiserver knows nothing but observers."""

import signal


class ObserverChecks:
    """Needs `store`, and `rolled`, which keeps clients of all kinds busy meanwhile and judges what they saw."""

    def killed_observers(self):
        """Each observer is killed, and goes on with its data."""
        return self.rolled("killed-observers", lambda name, go_on: self.killed(name, go_on, lambda: None), self.store.observers)

    def wiped_observers(self):
        """Each observer is killed and begins with nothing."""
        return self.rolled("wiped-observers", lambda name, go_on: self.killed(name, go_on, lambda: self.store.wipe(name)),
                           self.store.observers)

    def killed(self, name, go_on, then):
        self.store.kill(name)
        if len(self.store.observers) > 1:
            go_on()
        then()
        self.store.start(name)

    def killed_feeders(self):
        """The member that feeds an observer is killed, and another one feeds it until it is back."""
        store = self.store

        def step(name, go_on):
            feeder = store.feeder(name)
            store.kill(feeder)
            try:
                self.fed_by_another(name, feeder, go_on)
            finally:
                store.start(feeder)
            store.serves(feeder)
        return self.rolled("killed-feeders", step, store.observers)

    def paused_feeders(self):
        """The member that feeds an observer stops without a word, with all its connections open."""
        store = self.store

        def step(name, go_on):
            feeder = store.feeder(name)
            process = store.processes[feeder]
            process.send_signal(signal.SIGSTOP)
            try:
                self.fed_by_another(name, feeder, go_on)
            finally:
                process.send_signal(signal.SIGCONT)
            store.serves(feeder)
        return self.rolled("paused-feeders", step, store.observers)

    def fed_by_another(self, name, feeder, go_on):
        self.store.feeder(name, but=feeder)
        self.store.serves(name)
        go_on()
