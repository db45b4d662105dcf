struct Params {
    m: u32,
    n: u32,
    k: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;
@group(0) @binding(3) var<storage, read_write> c: array<f32>;

var<workgroup> a_tile: array<f32, 256>;
var<workgroup> b_tile: array<f32, 256>;

@compute @workgroup_size(16, 16)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
    @builtin(local_invocation_index) slot: u32,
) {
    let m = params.m;
    let n = params.n;
    let k = params.k;
    let row_inside = id.y < m;
    let column_inside = id.x < n;
    var sum = 0.0;
    for (var start = 0u; start < k; start += 16u) {
        let a_column = start + local.x;
        var a_element = 0.0;
        if row_inside && a_column < k {
            a_element = a[id.y * k + a_column];
        }
        a_tile[slot] = a_element;
        let b_row = start + local.y;
        var b_element = -0.0;
        if b_row < k && column_inside {
            b_element = b[b_row * n + id.x];
        }
        b_tile[slot] = b_element;
        workgroupBarrier();
        for (var p = 0u; p < 16u; p++) {
            sum = fma(a_tile[local.y * 16u + p], b_tile[p * 16u + local.x], sum);
        }
        workgroupBarrier();
    }
    if row_inside && column_inside {
        c[id.y * n + id.x] = sum;
    }
}
