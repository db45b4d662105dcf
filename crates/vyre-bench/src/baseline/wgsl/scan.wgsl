// Prefix sums in three launches: the sums of chunks, their prefix sums, and the prefix sums of each chunk.

@group(0) @binding(0) var<storage, read> data: array<u32>;
@group(0) @binding(1) var<storage, read> offsets: array<u32>;
@group(0) @binding(2) var<storage, read_write> totals: array<u32>;
@group(0) @binding(3) var<storage, read_write> sums: array<u32>;

var<workgroup> total: atomic<u32>;
var<workgroup> partial: array<u32, 256>;

fn chunk_size(n: u32, groups: u32) -> u32 {
    return (((n + 1023u) >> 10u) + groups - 1u) / groups << 10u;
}

@compute @workgroup_size(256)
fn sum_chunks(
    @builtin(local_invocation_index) local: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let n = arrayLength(&data);
    let size = chunk_size(n, groups.x);
    let start = group.x * size;
    let end = min(start + size, n);
    var sum = 0u;
    for (var i = start + local; i < end; i += 256u) {
        sum += data[i];
    }
    atomicAdd(&total, sum);
    workgroupBarrier();
    if local == 0u {
        totals[group.x] = atomicLoad(&total);
    }
}

@compute @workgroup_size(256)
fn scan_totals(@builtin(local_invocation_index) local: u32) {
    var sum = data[local];
    partial[local] = sum;
    workgroupBarrier();
    for (var distance = 1u; distance < 256u; distance <<= 1u) {
        var before = 0u;
        if local >= distance {
            before = partial[local - distance];
        }
        workgroupBarrier();
        sum += before;
        partial[local] = sum;
        workgroupBarrier();
    }
    totals[local] = sum;
}

@compute @workgroup_size(256)
fn scan_chunks(
    @builtin(local_invocation_index) local: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let n = arrayLength(&data);
    let size = chunk_size(n, groups.x);
    let start = group.x * size;
    let end = min(start + size, n);
    var before_tile = 0u;
    if group.x > 0u {
        before_tile = offsets[group.x - 1u];
    }
    for (var tile = start; tile < end; tile += 1024u) {
        let at = tile + local * 4u;
        let inside = at < n;
        var e = vec4<u32>();
        if inside {
            e = vec4<u32>(data[at], data[at + 1u], data[at + 2u], data[at + 3u]);
        }
        let s1 = e.x + e.y;
        let s2 = s1 + e.z;
        let own = s2 + e.w;
        var so_far = own;
        partial[local] = own;
        workgroupBarrier();
        for (var distance = 1u; distance < 256u; distance <<= 1u) {
            var lower = 0u;
            if local >= distance {
                lower = partial[local - distance];
            }
            workgroupBarrier();
            so_far += lower;
            partial[local] = so_far;
            workgroupBarrier();
        }
        let before = before_tile + so_far - own;
        if inside {
            sums[at] = before + e.x;
            sums[at + 1u] = before + s1;
            sums[at + 2u] = before + s2;
            sums[at + 3u] = before + own;
        }
        before_tile += partial[255];
        workgroupBarrier();
    }
}
