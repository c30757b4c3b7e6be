//! Decides which step sends next: jobs take turns, and only the first step of a job is shipped.

use std::collections::{BTreeSet, VecDeque};

use uuid::Uuid;

/// Identifies a step while it is being shipped.
pub(super) type StreamId = u64;

#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    /// The front is next. No queue is empty.
    queues: VecDeque<Queue>,
}

#[derive(Debug)]
struct Queue {
    /// Steps without a job do not wait for each other.
    job: Option<Uuid>,
    /// In order of arrival.
    streams: BTreeSet<(u64, StreamId)>,
}

impl RoundRobin {
    pub(super) fn add(&mut self, job: Option<Uuid>, sequence: u64, id: StreamId) {
        match self.queues.iter_mut().find(|queue| job.is_some() && queue.job == job) {
            Some(queue) => {
                queue.streams.insert((sequence, id));
            }
            None => self.queues.push_back(Queue { job, streams: BTreeSet::from([(sequence, id)]) }),
        }
    }

    /// The number of queues that take turns.
    pub(super) fn jobs(&self) -> usize {
        self.queues.len()
    }

    /// The steps of each queue, the one that is being shipped first.
    pub(super) fn queues(&self) -> impl Iterator<Item = Vec<StreamId>> {
        self.queues.iter().map(|queue| queue.streams.iter().map(|(_, id)| *id).collect())
    }

    /// The step that sends next; its job moves to the end.
    pub(super) fn next(&mut self) -> Option<StreamId> {
        let (_, id) = *self.queues.front()?.streams.first()?;
        self.queues.rotate_left(1);
        Some(id)
    }

    pub(super) fn remove(&mut self, id: StreamId) {
        for queue in &mut self.queues {
            queue.streams.retain(|(_, stream)| *stream != id);
        }
        self.queues.retain(|queue| !queue.streams.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(turns: &mut RoundRobin) -> Vec<StreamId> {
        (0..turns.jobs()).filter_map(|_| turns.next()).collect()
    }

    #[test]
    fn jobs_take_turns_and_their_steps_are_shipped_in_order_of_arrival() {
        let mut turns = RoundRobin::default();
        assert_eq!(turns.next(), None);
        let (a, b) = (Some(Uuid::from_u128(1)), Some(Uuid::from_u128(2)));
        for (job, sequence, id) in [(a, 7, 1), (a, 3, 2), (b, 5, 3), (None, 6, 4), (None, 1, 5)] {
            turns.add(job, sequence, id);
        }
        assert_eq!(round(&mut turns), [2, 3, 4, 5]);
        assert_eq!(turns.next(), Some(2));
        assert_eq!(round(&mut turns), [3, 4, 5, 2]);
        turns.remove(2);
        turns.remove(4);
        assert_eq!(round(&mut turns), [3, 5, 1]);
        for id in [1, 3, 5] {
            turns.remove(id);
        }
        assert_eq!(turns.jobs(), 0);
    }
}
