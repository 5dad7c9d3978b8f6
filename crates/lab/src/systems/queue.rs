//! The queue of a card below the engine in this process.
//!
//! A kernel writes back in the background: a write to a block device returns when the queue has taken it, and only a flush
//! waits for its end. On a card that takes one command at a time this makes no difference, so it gets each request as the
//! engine makes it.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use block::{Device, DiscardUnit, Geometry};
use flash::Card;

/// A card with a queue, whose writes nobody waits for until the next flush.
pub(super) struct QueuedCard {
    card: Arc<Card>,
    /// Time at which all writes so far are done.
    written_ns: AtomicU64,
}

impl QueuedCard {
    /// Puts the queue in front of a card.
    pub fn new(card: Arc<Card>) -> QueuedCard {
        QueuedCard { card, written_ns: AtomicU64::new(0) }
    }
}

/// Returns true if the card takes several commands at a time.
pub(super) fn has_queue(card: &Card) -> bool {
    card.with_model(|model| model.profile().host.queue_depth > 1)
}

impl Device for QueuedCard {
    fn geometry(&self) -> Geometry {
        self.card.geometry()
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.card.read(offset_bytes, buf)
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        let (written, done_ns) = self.card.without_waiting(|| self.card.write(offset_bytes, buf));
        self.written_ns.fetch_max(done_ns, Ordering::Relaxed);
        written
    }

    fn flush(&self) -> io::Result<()> {
        self.card.wait_until_ns(self.written_ns.load(Ordering::Relaxed));
        self.card.flush()
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.card.discard(offset_bytes, length_bytes)
    }

    fn discard_unit(&self) -> Option<DiscardUnit> {
        self.card.discard_unit()
    }
}

#[cfg(test)]
mod tests {
    use f2fs::{
        engine::{Caller, Engine, FinalSymlink, NewNode, Options, SyncScope},
        format::FileType,
        units::Time,
    };
    use flash::{Clock, Condition, FaultPlan, Profile};

    use super::*;
    use crate::systems::engine::format;

    fn card_of(profile: &str) -> Arc<Card> {
        let profile = Profile::named(profile).and_then(|card| card.with_size(512 << 20)).unwrap();
        Arc::new(Card::new(profile, Condition::Preconditioned))
    }

    fn write_apart(device: &dyn Device) {
        (0..64).for_each(|n| device.write(n << 20, &[1; 16384]).unwrap());
    }

    #[test]
    fn writes_overlap_in_a_queue_and_a_flush_waits_for_them() {
        let (plain, queued) = (card_of("survey-emmc51"), card_of("survey-emmc51"));
        let device = QueuedCard::new(queued.clone());
        write_apart(&*plain);
        write_apart(&device);
        let written_ns = device.written_ns.load(Ordering::Relaxed);
        assert!(queued.now_ns() < written_ns, "some are under way");
        assert!(written_ns < plain.now_ns(), "{written_ns} of {} ns", plain.now_ns());
        queued.start_trace();
        device.flush().unwrap();
        assert!(queued.stop_trace().entries[0].at_ns >= written_ns, "the flush waits");
    }

    #[test]
    fn the_queue_is_as_deep_as_that_of_the_card() {
        let mut profile = Profile::named("survey-emmc51").and_then(|card| card.with_size(512 << 20)).unwrap();
        profile.host.queue_depth = 4;
        let card = Arc::new(Card::new(profile, Condition::Preconditioned));
        card.start_trace();
        write_apart(&QueuedCard::new(card.clone()));
        let entries = card.stop_trace().entries;
        let waiting = entries.iter().map(|late| {
            let before = entries.iter().take_while(|entry| !std::ptr::eq(*entry, late));
            before.filter(|entry| entry.done_ns > late.at_ns).count()
        });
        assert_eq!(waiting.max(), Some(4), "the host waits with the fifth until one of four is done");
    }

    #[test]
    fn only_some_cards_have_a_queue() {
        let card = |name| Card::new(Profile::named(name).unwrap(), Condition::Fresh);
        assert!(has_queue(&card("survey-ufs31")) && !has_queue(&card("survey-class10")));
    }

    #[test]
    fn a_write_that_nobody_waits_for_reports_its_error() {
        let card = card_of("survey-emmc51");
        card.set_faults(FaultPlan { power_cut_at: Some(1), ..FaultPlan::default() });
        let device = QueuedCard::new(card);
        device.write(0, &[1; 4096]).unwrap();
        device.write(1 << 20, &[1; 4096]).expect_err("the power fails");
        device.flush().expect_err("there is no power");
    }

    #[test]
    fn synced_data_survives_a_power_cut_while_other_writes_are_under_way() {
        for seed in 0..4 {
            let card = card_of("survey-emmc51");
            format(card.clone(), 512 << 20, &[]).unwrap();
            let options = || Options::new(|| Time { seconds: 1, nanoseconds: 0 });
            let mut volume = Engine::open(Arc::new(QueuedCard::new(card.clone())), options()).unwrap();
            let root = volume.resolve(b"/", FinalSymlink::Follow).unwrap();
            let new = NewNode::new(FileType::Regular.mode_bits() | 0o644);
            for name in [b"synced", b"others"] {
                let ino = volume.begin(Caller::ADMIN).create(root, name, &new).unwrap();
                volume.begin(Caller::ADMIN).write(ino, 0, &[7; 256 << 10]).unwrap();
                if name == b"synced" {
                    volume.fsync(ino, SyncScope::Everything).unwrap();
                }
            }
            card.power_cycle(seed).unwrap();
            std::mem::forget(volume);
            let volume = Engine::open(card, options()).unwrap();
            let ino = volume.lookup(root, b"synced").unwrap();
            let mut content = vec![0; 256 << 10];
            assert_eq!(volume.read(ino, 0, &mut content).unwrap(), content.len());
            assert!(content.iter().all(|byte| *byte == 7), "seed {seed}");
        }
    }
}
