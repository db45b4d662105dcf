#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Point {
    x: f32,
}

fn main() {
    let device = vyre::Device::auto().unwrap();
    let _ = device.upload(&[Point { x: 1.0 }]);
}
