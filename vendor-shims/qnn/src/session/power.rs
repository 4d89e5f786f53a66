//! Votes on the processor's clocks, for as long as a session keeps them.
//!
//! The openly licensed clients on phones cast the same votes: the Qualcomm backends of LiteRT
//! (Apache-2.0) and ExecuTorch (BSD). Both set the clocks once, the latency of calls, and for the
//! two fast modes the time that a caller polls for its result. **Untested** on a phone. The x86-64
//! library has no clocks to set. It accepts every call and logs at verbose level the values it
//! read, which match the values written here.

use std::ptr::null;
use std::sync::Arc;

use shardwright_shim_npu::Power;

use super::{Device, Preparation, checked};
use crate::failure::{QnnError, Result};
use crate::ffi::{Clocks, Corners, Infrastructure, PowerConfig, PowerValue, number};
use crate::library::Library;

/// The first device and core. Phones have only one.
const DEVICE: u32 = 0;
const CORE: u32 = 0;

/// Microseconds a call may wait for the processor to wake.
const CALL_LATENCY: u32 = 100;
/// Microseconds a caller polls in the fast modes, the maximum of the interface.
const POLLING: u32 = 9999;

/// The settings of a power mode.
struct Wish {
    scaling: bool,
    mode: u32,
    /// Allowed latency of waking up, microseconds.
    sleep_latency: u32,
    corner: u32,
    polls: bool,
}

fn wish(power: Power) -> Wish {
    let fixed = |sleep_latency, corner| Wish {
        scaling: false,
        mode: number::CLOCKS_UP_DOWN,
        sleep_latency,
        corner,
        polls: true,
    };
    let scaled = |corner| Wish {
        scaling: true,
        mode: number::CLOCKS_PERFORM,
        sleep_latency: 1000,
        corner,
        polls: false,
    };
    match power {
        Power::Burst => fixed(40, number::CORNER_MAX),
        Power::Sustained => fixed(100, number::CORNER_TURBO),
        Power::Balanced => scaled(number::CORNER_NOM_PLUS),
        Power::Saver => scaled(number::CORNER_SVS),
    }
}

/// The vote before a client is removed. It leaves the decision to others.
const NOTHING: Wish = Wish {
    scaling: true,
    mode: number::CLOCKS_SAVE,
    sleep_latency: 2000,
    corner: number::CORNER_SVS2,
    polls: false,
};

impl Wish {
    fn clocks(&self, client: u32) -> PowerConfig {
        let corners = Corners { least: self.corner, target: self.corner, most: self.corner };
        let clocks = Clocks {
            client,
            set_scaling: 1,
            scaling: u32::from(self.scaling),
            mode: self.mode,
            set_sleep_latency: 1,
            sleep_latency: self.sleep_latency,
            set_sleep_disable: 0,
            sleep_disable: 0,
            set_bus: 1,
            bus: corners,
            set_core: 1,
            core: corners,
        };
        PowerConfig { option: number::POWER_CLOCKS, value: PowerValue { clocks } }
    }
}

/// The library's functions, none of them null.
#[derive(Clone, Copy)]
struct Setters {
    create: unsafe extern "C" fn(u32, u32, *mut u32) -> u64,
    destroy: unsafe extern "C" fn(u32) -> u64,
    set: unsafe extern "C" fn(u32, *const *const PowerConfig) -> u64,
}

impl Setters {
    fn of(library: &Library, preparation: &Preparation) -> Result<Setters> {
        let mut infrastructure: *const Infrastructure = null();
        // SAFETY: the place outlives the call.
        let code = unsafe { (library.functions().device_get_infrastructure)(&mut infrastructure) };
        checked(library, "deviceGetInfrastructure", code, preparation.mark())?;
        let missing = |reason: &str| QnnError::NotOffered { what: "power modes", reason: reason.to_owned() };
        // SAFETY: null, or a struct that the library never frees.
        let infrastructure =
            unsafe { infrastructure.as_ref() }.ok_or_else(|| missing("it returns no infrastructure"))?;
        if infrastructure.kind != number::INFRASTRUCTURE_POWER {
            return Err(missing(&format!("its infrastructure is of kind {}", infrastructure.kind)));
        }
        match (infrastructure.create, infrastructure.destroy, infrastructure.set) {
            (Some(create), Some(destroy), Some(set)) => Ok(Setters { create, destroy, set }),
            _ => Err(missing("its infrastructure lacks a function")),
        }
    }

    fn set(&self, client: u32, configs: &[PowerConfig]) -> u64 {
        let list: Vec<*const PowerConfig> =
            configs.iter().map(|config| config as *const _).chain([null()]).collect();
        // SAFETY: a list that ends with null and outlives the call, as do the values it points to.
        unsafe { (self.set)(client, list.as_ptr()) }
    }
}

/// A vote that is withdrawn when dropped.
pub struct PowerVote {
    setters: Setters,
    client: u32,
    // The library keeps clients with the device.
    _device: Arc<Device>,
}

impl PowerVote {
    /// Votes for a mode on a device.
    ///
    /// # Errors
    /// [`QnnError::NotOffered`] if the library does not support votes, and errors of the library.
    pub fn cast(device: Arc<Device>, power: Power) -> Result<PowerVote> {
        let preparation = Preparation::begin();
        let library = device.backend().library().clone();
        let setters = Setters::of(&library, &preparation)?;
        let mut client = 0;
        // SAFETY: the place outlives the call.
        let code = unsafe { (setters.create)(DEVICE, CORE, &mut client) };
        checked(&library, "createPowerConfigId", code, preparation.mark())?;
        let vote = PowerVote { setters, client, _device: device };
        let wish = wish(power);
        let microseconds = |option, microseconds| PowerConfig { option, value: PowerValue { microseconds } };
        let mut configs = vec![wish.clocks(client), microseconds(number::POWER_CALL_LATENCY, CALL_LATENCY)];
        if wish.polls {
            configs.push(microseconds(number::POWER_POLLING, POLLING));
        }
        let code = setters.set(client, &configs);
        let cast = checked(&library, "setPowerConfig", code, preparation.mark());
        // Withdrawing a failed vote is a separate preparing call.
        drop(preparation);
        cast.map(|()| vote)
    }
}

impl Drop for PowerVote {
    fn drop(&mut self) {
        let _preparation = Preparation::begin();
        self.setters.set(self.client, &[NOTHING.clocks(self.client)]);
        // SAFETY: created by `cast`, destroyed once.
        unsafe { (self.setters.destroy)(self.client) };
    }
}
