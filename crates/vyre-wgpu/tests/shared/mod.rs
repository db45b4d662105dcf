//! Test devices with custom limits.

use vyre_wgpu::Shared;

/// A wgpu device with limits below the adapter's.
pub(crate) fn shared(limit: impl FnOnce(&mut wgpu::Limits)) -> Shared {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut ready = |future: std::pin::Pin<&mut dyn Future<Output = Shared>>| match future.poll(&mut context) {
        std::task::Poll::Ready(shared) => shared,
        std::task::Poll::Pending => panic!("wgpu has no such futures here"),
    };
    let future = std::pin::pin!(async {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
        let adapter = instance.request_adapter(&wgpu::RequestAdapterOptions::default()).await.expect("an adapter");
        let mut required_limits = adapter.limits();
        limit(&mut required_limits);
        let descriptor = wgpu::DeviceDescriptor { required_limits, ..wgpu::DeviceDescriptor::default() };
        let (device, queue) = adapter.request_device(&descriptor).await.expect("a device");
        Shared { device, queue }
    });
    ready(future)
}
