//! N-body simulation: a disc of bodies around a heavy one; checks that the energy is conserved.

use bytemuck::{Pod, Zeroable};
use vyre::{Device, Record, kernel};

#[derive(Clone, Copy, Pod, Zeroable, Record)]
#[repr(C)]
struct Body {
    x: f32,
    y: f32,
    z: f32,
    mass: f32,
}

#[derive(Clone, Copy, Pod, Zeroable, Record)]
#[repr(C)]
struct Velocity {
    x: f32,
    y: f32,
    z: f32,
}

const SOFTENING: f32 = 0.05;

/// One step of symplectic Euler integration: velocities first, then positions by the new velocities. Every invocation reads all bodies, so
/// new positions go to a separate slice.
#[kernel(workgroup = 64)]
fn step(dt: f32, bodies: &[Body], velocities: &mut [Velocity], moved: &mut [Body]) {
    let i = global_index();
    if i >= bodies.len() {
        return;
    }
    let Body { x, y, z, mass } = bodies[i];
    let Velocity { x: mut vx, y: mut vy, z: mut vz } = velocities[i];
    for j in 0..bodies.len() {
        let Body { x: other_x, y: other_y, z: other_z, mass: other_mass } = bodies[j];
        let (dx, dy, dz) = (other_x - x, other_y - y, other_z - z);
        let squared = dx.mul_add(dx, dy.mul_add(dy, dz.mul_add(dz, SOFTENING * SOFTENING)));
        let pull = other_mass * dt / (squared * squared.sqrt());
        vx = pull.mul_add(dx, vx);
        vy = pull.mul_add(dy, vy);
        vz = pull.mul_add(dz, vz);
    }
    velocities[i] = Velocity { x: vx, y: vy, z: vz };
    moved[i] = Body { x: vx.mul_add(dt, x), y: vy.mul_add(dt, y), z: vz.mul_add(dt, z), mass };
}

fn energy(bodies: &[Body], velocities: &[Velocity]) -> f64 {
    let mut energy = 0.0;
    for (i, (a, v)) in bodies.iter().zip(velocities).enumerate() {
        energy += f64::from(a.mass * (v.x * v.x + v.y * v.y + v.z * v.z)) / 2.0;
        for b in &bodies[..i] {
            let distance = (a.x - b.x).hypot(a.y - b.y).hypot(a.z - b.z).hypot(SOFTENING);
            energy -= f64::from(a.mass * b.mass / distance);
        }
    }
    energy
}

fn main() -> Result<(), vyre::Error> {
    let (n, steps, dt) = (2000, 500, 0.002);
    let mut bodies = vec![Body { x: 0.0, y: 0.0, z: 0.0, mass: 1.0 }];
    let mut velocities = vec![Velocity { x: 0.0, y: 0.0, z: 0.0 }];
    for i in 1..n {
        // The golden angle distributes bodies evenly; 1 / √radius is the speed of a circular orbit around a mass of 1.
        let (radius, angle) = (0.4 + i as f32 / n as f32, i as f32 * 2.399_963);
        let ((sin, cos), speed) = (angle.sin_cos(), radius.sqrt().recip());
        bodies.push(Body { x: radius * cos, y: radius * sin, z: 0.05 * (i as f32).sin(), mass: 1e-5 });
        velocities.push(Velocity { x: -speed * sin, y: speed * cos, z: 0.0 });
    }

    let device = Device::auto()?;
    let (mut here, mut there) = (device.upload(&bodies)?, device.zeros::<Body>(n)?);
    let mut speeds = device.upload(&velocities)?;

    let (mut expected_speeds, mut expected) = (velocities.clone(), bodies.clone());
    step::host(n, dt, &bodies, &mut expected_speeds, &mut expected);
    step(dt, &here, &mut speeds, &mut there).run(&device, n)?;
    for (found, expected) in there.download()?.iter().zip(&expected) {
        let wrong = (found.x - expected.x).abs() + (found.y - expected.y).abs() + (found.z - expected.z).abs();
        assert!(wrong < 1e-5, "the position of a body is off by {wrong}");
    }

    for _ in 1..steps {
        std::mem::swap(&mut here, &mut there);
        step(dt, &here, &mut speeds, &mut there).run(&device, n)?;
    }
    let (before, after) = (energy(&bodies, &velocities), energy(&there.download()?, &speeds.download()?));
    let drift = (after / before - 1.0).abs();
    println!("{n} bodies, {steps} steps: the energy {before:.6} became {after:.6}, a drift of {drift:.0e}");
    assert!(drift < 1e-3, "the energy drifts by {drift}");
    Ok(())
}
