//! Names of numbers, which `nft` looks up on the host.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::{mounts, tools};
use kernlink_nftables::{Names, Nftables};

use crate::copy::sorted;
use crate::{client, listing, nft};

const RULESET: &str = "table ip t {
    set links { type iface_index; elements = { \"lo\", \"one\", \"two\" }; }
    set pairs { type iface_index . mark; elements = { \"one\" . blue, \"lo\" . 7 }; }
    set zones { type realm; elements = { \"cosmos\", \"inside\" }; }
    map colours { type devgroup : mark; elements = { \"default\" : blue, \"uplinks\" : 9 }; }
    chain a {
        iif \"one\" accept
        oif != \"lo\" accept
        iif { \"one\", \"two\" } drop
        iif . tcp dport { \"two\" . 80 } accept
        iif vmap { \"lo\" : accept, \"one\" : drop }
        iif 4000 accept
        iif @links accept
        iif . meta mark @pairs drop
        iifgroup \"uplinks\" oifgroup 7 accept
        rtclassid \"inside\" accept
        rtclassid 8 accept
        meta mark blue ct mark set red
        meta mark set iifgroup map @colours
        meta mark and 0xff == blue accept
        meta mark and 2 == 2 meta mark set mark or 2
        meta mark 2-9 accept
        meta mark != 2-9 accept
        meta mark >= 2 accept
        meta mark { 2-5, 9 } drop
        meta mark set meta mark map { 2 : 3, 4-9 : 2 }
        ct mark and 0xf0 vmap { 2 : drop }
        iifgroup 3-5 accept
        iif 1-4000 accept
        iif > 1 accept
        iif { 1-3, 4000 } accept
        socket cgroupv2 level 2 \"system.slice/web\" accept
        dup to 10.0.0.1 device \"two\"
    }
}";

#[test]
fn numbers_print_with_their_names_as_nft_lists_them() {
    let mut names = Names::new();
    names
        .device_groups
        .extend([(0, "default".into()), (3, "uplinks".into())]);
    names.realms.extend([(0, "cosmos".into()), (5, "inside".into())]);
    names.marks.extend([(2, "blue".into()), (300, "red".into())]);
    NetNs::new().run(|| {
        let (tables, groups) = (Path::new("/etc/iproute2"), Path::new("/sys/fs/cgroup"));
        mounts::empty_folders(&[tables, groups]);
        for (file, numbers) in [
            ("group", &names.device_groups),
            ("rt_realms", &names.realms),
            ("rt_marks", &names.marks),
        ] {
            let lines: Vec<String> = numbers
                .iter()
                .map(|(number, name)| format!("{number} {name}\n"))
                .collect();
            fs::write(tables.join(file), lines.concat()).unwrap();
        }
        let web = groups.join("system.slice/web");
        fs::create_dir_all(&web).unwrap();
        let web = fs::metadata(web).unwrap().ino();
        names.control_groups.insert(web, "system.slice/web".into());
        tools::must("ip", &["link", "add", "one", "type", "veth", "peer", "two"]);
        // `2: two@one: <BROADCAST,...`
        for line in tools::must("ip", &["-o", "link"]).lines() {
            let mut fields = line.split([':', '@']).map(str::trim);
            let index = fields.next().unwrap().parse().unwrap();
            names.devices.insert(index, fields.next().unwrap().into());
        }
        nft(RULESET);
        let ruleset = client().ruleset().unwrap();
        let (printed, listed) = (
            sorted(&ruleset.with_names(&names).to_string()),
            sorted(&listing()),
        );
        assert_eq!(printed, listed);
        // Each kind of name is there, and without names there is none.
        let without = ruleset.to_string();
        for name in [
            "\"one\"",
            "\"uplinks\"",
            "\"inside\"",
            "\"blue\"",
            "\"system.slice/web\"",
        ] {
            assert!(printed.contains(name), "{name}\n{printed}");
            assert!(!without.contains(name), "{name}\n{without}");
        }
        let table = ruleset.tables.first().unwrap();
        assert_eq!(sorted(&table.with_names(&names).to_string()), listed);
    });
}
