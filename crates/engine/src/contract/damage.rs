//! Changes by other programs.

use super::process::{Expected, cluster, converged, same};
use super::{Fixture, Host, times};

/// What another program removes or changes is repaired by one sync that reads the kernel, of the same process or of a new one.
pub fn damage_by_another_program_is_repaired_by_one_sync<F: Fixture>(fixture: &mut F) {
    for seed in times(&fixture.seeds(), 8) {
        let (services, mut random) = cluster(fixture, seed);
        let mut process = converged(fixture, &services, &format!("seed {seed}"));
        let (owned, foreign) = (process.host.owned(), process.host.foreign());
        let mut damage = Vec::new();
        for _ in 0..=random.below(5) {
            damage.push(process.host.damage(&mut random));
        }
        let about = format!("seed {seed}, damage:\n{}", damage.join("\n"));
        assert!(damage.iter().any(|damage| !damage.is_empty()), "{about}");
        if random.chance(40) {
            process = process.restart(&services);
        }
        process.proxier.resync();
        // If nothing is left, a sync of the first Services precedes that of all.
        for _ in 0..2 {
            let Some(synced) = process.sync() else {
                panic!("{about}: the kernel was not read");
            };
            assert!(synced.is_success(), "{about}: {synced}");
            if synced.next.is_none_or(|next| next > process.now) {
                break;
            }
        }
        same(&about, &owned, &process.host.owned());
        same(&about, &foreign, &process.host.foreign());
        process.check_served(&Expected::stable(fixture));
    }
}
