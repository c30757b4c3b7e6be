//! The state of a step from which recovery continues.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryPhase {
    /// The script was not started: start from `prepare`.
    Prepare,
    /// The supervisor is alive: wait for it, then `conclude`.
    Running,
    /// The script has ended: `conclude`.
    Conclude,
    /// The script was started, but there is neither a supervisor nor an exit: the outcome is unknown.
    Lost,
    /// The outcome is known: ship what is left.
    Ship,
}

impl RecoveryPhase {
    pub(super) fn of(driven: bool, started: bool, exited: bool) -> Self {
        match (driven, started, exited) {
            (_, _, true) => Self::Conclude,
            (true, _, false) => Self::Running,
            (false, true, false) => Self::Lost,
            (false, false, false) => Self::Prepare,
        }
    }
}
