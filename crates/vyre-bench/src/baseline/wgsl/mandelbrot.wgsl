struct Params {
    center_x: f32,
    center_y: f32,
    span: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> image: array<u32>;

const SIDE = 1024u;
const MAX_TRIPS = 256u;

@compute @workgroup_size(16, 16)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= SIDE || id.y >= SIDE {
        return;
    }
    let cx = fma((f32(id.x) + 0.5) / f32(SIDE) - 0.5, params.span, params.center_x);
    let cy = fma((f32(id.y) + 0.5) / f32(SIDE) - 0.5, params.span, params.center_y);
    var trips = 0u;
    var x = 0.0;
    var y = 0.0;
    loop {
        let xx = x * x;
        let yy = y * y;
        if xx + yy > 4.0 || trips >= MAX_TRIPS {
            break;
        }
        y = fma(x * y, 2.0, cy);
        x = xx - yy + cx;
        trips++;
    }
    image[id.y * SIDE + id.x] = select(min(trips * 5u, 255u), 0u, trips >= MAX_TRIPS);
}
