//! The ring in all the ways that its threads can go, as far as these make a difference. `cargo xtask test` builds and runs this in
//! seconds.
#![cfg(loom)]

mod model {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use loom::thread;
    use vyre_runtime::megakernel::WorkItem;
    use vyre_runtime::megakernel::ring::{Drained, Flaw, Otherwise, Pushed, Ring};

    fn item(producer: u32, number: u32) -> WorkItem {
        WorkItem { op_handle: producer, param: number, ..WorkItem::default() }
    }

    /// The numbers of what a producer has pushed, in the order in which it was drained.
    fn of(drained: &[WorkItem], producer: u32) -> Vec<u32> {
        drained.iter().filter(|item| item.op_handle == producer).map(|item| item.param).collect()
    }

    /// Two producers fill two slots, one with more than there is room for, and a consumer takes two items at a time.
    fn producers_and_a_consumer(ring: fn() -> Ring) {
        loom::model(move || {
            let ring = Arc::new(ring());
            let [first, second] = [2, 1].map(|count| {
                let producer = count;
                let ring = ring.clone();
                thread::spawn(move || {
                    let items: Vec<WorkItem> = (0..count).map(|number| item(producer, number)).collect();
                    assert_eq!(ring.push(&items, Otherwise::Wait), Pushed::All);
                })
            });
            let mut drained = Vec::new();
            while drained.len() < 3 {
                assert!(matches!(ring.drain(&mut drained, 2, Otherwise::Wait), Drained::Items(1..=2)));
            }
            first.join().unwrap();
            second.join().unwrap();
            assert_eq!(ring.drain(&mut drained, 2, Otherwise::Return), Drained::WouldBlock);
            assert_eq!((of(&drained, 2), of(&drained, 1)), (vec![0, 1], vec![0]));
        });
    }

    /// The ring is closed while a producer pushes more than there is room for, and a consumer drains until there is no more.
    fn closing(ring: fn() -> Ring) {
        loom::model(move || {
            let ring = Arc::new(ring());
            let producer = thread::spawn({
                let ring = ring.clone();
                move || match ring.push(&[0, 1, 2].map(|number| item(1, number)), Otherwise::Wait) {
                    Pushed::All => 3,
                    Pushed::Closed { accepted } => accepted,
                    Pushed::WouldBlock { .. } => unreachable!("it was told to wait"),
                }
            });
            let closer = thread::spawn({
                let ring = ring.clone();
                move || ring.close()
            });
            let mut drained = Vec::new();
            while let Drained::Items(_) = ring.drain(&mut drained, 2, Otherwise::Wait) {}
            closer.join().unwrap();
            let accepted = producer.join().unwrap();
            assert_eq!(of(&drained, 1), [0, 1, 2][..accepted]);
        });
    }

    fn is_noticed(model: impl FnOnce()) -> bool {
        catch_unwind(AssertUnwindSafe(model)).is_err()
    }

    #[test]
    fn nothing_is_lost_or_out_of_order() {
        producers_and_a_consumer(|| Ring::new(2));
    }

    #[test]
    fn what_was_accepted_is_drained_after_closing() {
        closing(|| Ring::new(2));
    }

    #[test]
    fn a_ring_that_sleeps_without_a_look_is_noticed() {
        assert!(is_noticed(|| producers_and_a_consumer(|| Ring::flawed(2, Flaw::LostWakeup))));
    }

    #[test]
    fn a_ring_that_drains_silently_is_noticed() {
        assert!(is_noticed(|| producers_and_a_consumer(|| Ring::flawed(2, Flaw::SilentDrain))));
    }

    #[test]
    fn a_ring_that_closes_silently_is_noticed() {
        assert!(is_noticed(|| closing(|| Ring::flawed(2, Flaw::SilentClose))));
    }

    #[test]
    fn a_ring_that_forgets_its_rest_is_noticed() {
        assert!(is_noticed(|| closing(|| Ring::flawed(2, Flaw::ClosedBeforeEmpty))));
    }
}
