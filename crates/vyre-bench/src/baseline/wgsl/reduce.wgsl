@group(0) @binding(0) var<storage, read> data: array<f32>;
@group(0) @binding(1) var<storage, read_write> sums: array<f32>;

var<workgroup> tree: array<f32, 256>;

@compute @workgroup_size(256)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let n = arrayLength(&data);
    let stride = groups.x * 256u;
    var sum = 0.0;
    for (var i = id.x; i < n; i += stride) {
        sum += data[i];
    }
    tree[local] = sum;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half >>= 1u) {
        if local < half {
            tree[local] += tree[local + half];
        }
        workgroupBarrier();
    }
    if local == 0u {
        sums[group.x] = tree[0];
    }
}
