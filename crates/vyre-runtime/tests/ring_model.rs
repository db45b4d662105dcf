//! Loom model of the ring: explores all distinct thread interleavings. `cargo xtask test` builds and runs it in seconds.
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

    /// Numbers of the drained items of a producer, in drain order.
    fn of(drained: &[WorkItem], producer: u32) -> Vec<u32> {
        drained.iter().filter(|item| item.op_handle == producer).map(|item| item.param).collect()
    }

    /// Two producers push three items into two slots, and a consumer drains up to two items at a time.
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

    /// The ring is closed while a producer pushes more than its capacity and a consumer drains it.
    fn closing(ring: fn() -> Ring) {
        loom::model(move || {
            let ring = Arc::new(ring());
            let producer = thread::spawn({
                let ring = ring.clone();
                move || match ring.push(&[0, 1, 2].map(|number| item(1, number)), Otherwise::Wait) {
                    Pushed::All => 3,
                    Pushed::Closed { accepted } => accepted,
                    Pushed::WouldBlock { .. } => unreachable!("the push blocks"),
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

    fn is_detected(model: impl FnOnce()) -> bool {
        catch_unwind(AssertUnwindSafe(model)).is_err()
    }

    #[test]
    fn no_item_is_lost_or_reordered() {
        producers_and_a_consumer(|| Ring::new(2));
    }

    #[test]
    fn accepted_items_are_drained_after_closing() {
        closing(|| Ring::new(2));
    }

    #[test]
    fn lost_wakeups_are_detected() {
        assert!(is_detected(|| producers_and_a_consumer(|| Ring::flawed(2, Flaw::LostWakeup))));
    }

    #[test]
    fn missing_notification_of_a_drain_is_detected() {
        assert!(is_detected(|| producers_and_a_consumer(|| Ring::flawed(2, Flaw::SilentDrain))));
    }

    #[test]
    fn missing_notification_of_a_close_is_detected() {
        assert!(is_detected(|| closing(|| Ring::flawed(2, Flaw::SilentClose))));
    }

    #[test]
    fn closing_before_the_ring_is_empty_is_detected() {
        assert!(is_detected(|| closing(|| Ring::flawed(2, Flaw::ClosedBeforeEmpty))));
    }
}
