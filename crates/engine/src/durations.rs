//! How long the stages of a sync took.

use std::time::{Duration, Instant};

/// How long each stage of a sync took. 0: the stage was not needed, or no clock was set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Durations {
    /// Reading the kernel: all of it, or single objects. While the tables of a full listing are read, the changed Services are resolved.
    pub read: Duration,
    /// Resolving the changed Services, and compiling the desired objects.
    pub compile: Duration,
    /// Comparing the dirty objects.
    pub plan: Duration,
    /// Executing the plan.
    pub apply: Duration,
}

impl Durations {
    /// The names of the stages, in order, with their durations.
    #[must_use]
    pub fn stages(&self) -> [(&'static str, Duration); 4] {
        [
            ("read", self.read),
            ("compile", self.compile),
            ("plan", self.plan),
            ("apply", self.apply),
        ]
    }

    /// All stages.
    #[must_use]
    pub fn total(&self) -> Duration {
        let stages = self.stages().into_iter();
        stages.fold(Duration::ZERO, |total, (_, stage)| total.saturating_add(stage))
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            read: self.read.saturating_add(other.read),
            compile: self.compile.saturating_add(other.compile),
            plan: self.plan.saturating_add(other.plan),
            apply: self.apply.saturating_add(other.apply),
        }
    }

    fn stage_mut(&mut self, stage: Stage) -> &mut Duration {
        match stage {
            Stage::Read => &mut self.read,
            Stage::Compile => &mut self.compile,
            Stage::Plan => &mut self.plan,
            Stage::Apply => &mut self.apply,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    Read,
    Compile,
    Plan,
    Apply,
}

/// Measures stages that follow each other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stopwatch {
    /// `None`: nothing is measured.
    clock: Option<fn() -> Instant>,
    /// The end of the last stage.
    since: Option<Instant>,
    durations: Durations,
}

impl Stopwatch {
    pub(crate) fn set_clock(&mut self, clock: fn() -> Instant) {
        self.clock = Some(clock);
    }

    /// The first stage begins.
    pub(crate) fn start(&mut self) {
        self.durations = Durations::default();
        self.since = self.clock.map(|clock| clock());
    }

    /// A stage ends, and the next one begins.
    pub(crate) fn end(&mut self, stage: Stage) {
        let Some(clock) = self.clock else { return };
        let now = clock();
        if let Some(since) = self.since.replace(now) {
            *self.durations.stage_mut(stage) += now.saturating_duration_since(since);
        }
    }

    /// The durations of the stages since the last call or the start.
    pub(crate) fn take(&mut self) -> Durations {
        std::mem::take(&mut self.durations)
    }
}
