//! Credit: how much each side of a stream may still send (virtio 1.2, section 5.10.6.3).
//!
//! Counts of bytes wrap at 2^32, as they do in packets.

use super::packet::Packet;

/// Room for data from the guest, bytes.
pub(super) const BUF_ALLOC: u32 = 256 << 10;

/// How much we told the guest we have taken is off by this much at most, bytes.
const LAG: u32 = BUF_ALLOC / 4;

/// What we may send.
#[derive(Debug, Default)]
pub(super) struct Ours {
    /// Room the guest has in all, and what it has taken out of it.
    buf_alloc: u32,
    fwd_cnt: u32,
    sent: u32,
    /// Whether the guest has been asked for more and has not been heard since.
    asked: bool,
}

impl Ours {
    /// Every packet of the guest says what room it has.
    pub(super) fn learn(&mut self, packet: &Packet) {
        self.buf_alloc = packet.buf_alloc;
        self.fwd_cnt = packet.fwd_cnt;
        self.asked = false;
    }

    /// Bytes that may be sent. None where the guest's counts make no sense.
    pub(super) fn room(&self) -> usize {
        let on_the_way = self.sent.wrapping_sub(self.fwd_cnt);
        self.buf_alloc.saturating_sub(on_the_way) as usize
    }

    pub(super) fn spend(&mut self, bytes: usize) {
        self.sent = self.sent.wrapping_add(bytes as u32);
    }

    /// Whether to ask for more now: not again before there was an answer.
    pub(super) fn ask(&mut self) -> bool {
        self.room() == 0 && !std::mem::replace(&mut self.asked, true)
    }
}

/// What the guest may send.
#[derive(Debug, Default)]
pub(super) struct Theirs {
    taken: u32,
    told: u32,
    /// Whether the guest has asked.
    wanted: bool,
}

impl Theirs {
    /// The guest has these bytes off its mind.
    pub(super) fn take(&mut self, bytes: usize) {
        self.taken = self.taken.wrapping_add(bytes as u32);
    }

    /// The guest wants to know.
    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    /// Whether to tell the guest even with nothing else to say.
    pub(super) fn due(&self) -> bool {
        self.wanted || self.taken.wrapping_sub(self.told) >= LAG
    }

    /// What to tell the guest: every packet does.
    pub(super) fn tell(&mut self) -> u32 {
        self.wanted = false;
        self.told = self.taken;
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::vsock::packet::{HEADER, Packet};

    fn says(buf_alloc: u32, fwd_cnt: u32) -> Packet {
        Packet { buf_alloc, fwd_cnt, ..Packet::decode(&[0; HEADER]) }
    }

    #[test]
    fn room_is_what_is_neither_taken_nor_on_the_way() {
        for (sent, buf_alloc, fwd_cnt, room) in [
            (0, 0, 0, 0),
            (0, 100, 0, 100),
            (60, 100, 10, 50),
            (100, 100, 0, 0),
            // The guest has made its buffer smaller than what is on the way.
            (100, 50, 0, 0),
            // It says it took what was never sent.
            (10, 100, 11, 0),
            // Counts that wrapped.
            (5, 100, u32::MAX - 4, 90),
        ] {
            let mut ours = Ours { sent, ..Ours::default() };
            ours.learn(&says(buf_alloc, fwd_cnt));
            assert_eq!(ours.room(), room, "sent {sent}, buf_alloc {buf_alloc}, fwd_cnt {fwd_cnt}");
        }
    }

    #[test]
    fn more_room_is_asked_for_once_an_answer() {
        let mut ours = Ours::default();
        assert!(ours.ask());
        assert!(!ours.ask());
        ours.learn(&says(0, 0));
        assert!(ours.ask());
        ours.learn(&says(1, 0));
        assert!(!ours.ask());
    }

    #[test]
    fn the_guest_is_told_when_it_asks_or_a_quarter_is_free_again() {
        let mut theirs = Theirs::default();
        theirs.take(LAG as usize - 1);
        assert!(!theirs.due());
        theirs.take(1);
        assert!(theirs.due());
        assert_eq!(theirs.tell(), LAG);
        assert!(!theirs.due());
        theirs.want();
        assert!(theirs.due());
    }
}
