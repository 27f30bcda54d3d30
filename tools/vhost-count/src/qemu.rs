// SPDX-License-Identifier: GPL-2.0

//! What is used of QEMU's plugin interface, as safe Rust: `include/qemu/qemu-plugin.h` of QEMU 10.

use std::ffi::{c_char, c_int, c_uint, c_void, CStr};

/// The version of the interface that the declarations below follow: QEMU refuses a plugin that asks for another.
#[no_mangle]
pub(crate) static qemu_plugin_version: c_int = 4;

/// What a plugin is called by.
pub(crate) type PluginId = u64;

/// `struct qemu_plugin_tb`: instructions that are translated together.
#[repr(C)]
struct RawBlock {
    _opaque: [u8; 0],
}

/// `struct qemu_plugin_insn`.
#[repr(C)]
struct RawInsn {
    _opaque: [u8; 0],
}

/// `QEMU_PLUGIN_CB_NO_REGS`.
const NO_REGS: c_int = 0;

type Executed = extern "C" fn(c_uint, *mut c_void);

extern "C" {
    fn qemu_plugin_register_vcpu_tb_trans_cb(
        id: PluginId,
        cb: extern "C" fn(PluginId, *mut RawBlock),
    );
    fn qemu_plugin_tb_n_insns(tb: *const RawBlock) -> usize;
    fn qemu_plugin_tb_get_insn(tb: *const RawBlock, index: usize) -> *mut RawInsn;
    fn qemu_plugin_insn_vaddr(insn: *const RawInsn) -> u64;
    fn qemu_plugin_insn_data(insn: *const RawInsn, dest: *mut c_void, len: usize) -> usize;
    fn qemu_plugin_register_vcpu_tb_exec_cb(
        tb: *mut RawBlock,
        cb: Executed,
        flags: c_int,
        data: *mut c_void,
    );
    fn qemu_plugin_register_vcpu_insn_exec_cb(
        insn: *mut RawInsn,
        cb: Executed,
        flags: c_int,
        data: *mut c_void,
    );
}

/// The longest instruction there is.
const INSN_BYTES: usize = 15;

/// One instruction that is being translated.
pub(crate) struct Insn {
    raw: *mut RawInsn,
    bytes: [u8; INSN_BYTES],
    len: usize,
}

impl Insn {
    /// Where it stands.
    pub(crate) fn address(&self) -> u64 {
        // SAFETY: `raw` is an instruction of the block that is being translated (`Translation::insns()`).
        unsafe { qemu_plugin_insn_vaddr(self.raw) }
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// Has `call` called with `value` whenever this instruction is about to be executed.
    pub(crate) fn on_execution<T: Sync>(&self, value: &'static T, call: Call<T>) {
        let data = Box::leak(Box::new(Hook { value, call }));
        let data: *mut Hook<T> = data;
        // SAFETY: `raw` is as above; `data` is never freed, and of the type that `executed::<T>` takes it for.
        unsafe {
            qemu_plugin_register_vcpu_insn_exec_cb(self.raw, executed::<T>, NO_REGS, data.cast())
        };
    }
}

/// What is called: the virtual CPU's number, and the value that was given.
pub(crate) type Call<T> = fn(usize, &'static T);

struct Hook<T: 'static> {
    value: &'static T,
    call: Call<T>,
}

extern "C" fn executed<T: Sync + 'static>(cpu: c_uint, data: *mut c_void) {
    // SAFETY: QEMU gives back what was registered: a leaked `Hook<T>`, which nothing changes.
    let hook = unsafe { &*data.cast::<Hook<T>>() };
    (hook.call)(cpu as usize, hook.value); // CAST: Widens.
}

/// A block that is being translated.
pub(crate) struct Translation {
    raw: *mut RawBlock,
}

impl Translation {
    /// Its instructions.
    pub(crate) fn insns(&self) -> Vec<Insn> {
        // SAFETY: QEMU lends `raw` for the time of the translation, which `translate()` does not outlive.
        let count = unsafe { qemu_plugin_tb_n_insns(self.raw) };
        (0..count)
            .map(|index| {
                // SAFETY: As above, and `index` is below the number of instructions.
                let raw = unsafe { qemu_plugin_tb_get_insn(self.raw, index) };
                let mut bytes = [0; INSN_BYTES];
                // SAFETY: `raw` is an instruction of the block, `bytes` has room for as many as are asked for.
                let len =
                    unsafe { qemu_plugin_insn_data(raw, bytes.as_mut_ptr().cast(), INSN_BYTES) };
                Insn { raw, bytes, len }
            })
            .collect()
    }

    /// Has `call` called with `value` whenever the block is about to be executed.
    pub(crate) fn on_execution<T: Sync>(&self, value: &'static T, call: Call<T>) {
        let data = Box::leak(Box::new(Hook { value, call }));
        let data: *mut Hook<T> = data;
        // SAFETY: `raw` is as above; `data` is never freed, and of the type that `executed::<T>` takes it for.
        unsafe {
            qemu_plugin_register_vcpu_tb_exec_cb(self.raw, executed::<T>, NO_REGS, data.cast())
        };
    }
}

extern "C" fn translate(_id: PluginId, raw: *mut RawBlock) {
    crate::translated(&Translation { raw });
}

/// Called by QEMU when it has loaded the plugin.
///
/// # Safety
///
/// `argv` points at `argc` strings.
#[no_mangle]
unsafe extern "C" fn qemu_plugin_install(
    id: PluginId,
    _info: *const c_void,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    let arguments: Vec<String> = (0..usize::try_from(argc).unwrap_or(0))
        .map(|index| {
            // SAFETY: By the function's contract.
            let text = unsafe { CStr::from_ptr(*argv.add(index)) };
            text.to_string_lossy().into_owned()
        })
        .collect();
    match crate::start(&arguments) {
        Ok(()) => {
            // SAFETY: `id` is this plugin's own, `translate` is never unloaded: QEMU keeps a plugin that installed.
            unsafe { qemu_plugin_register_vcpu_tb_trans_cb(id, translate) };
            0
        }
        Err(why) => {
            eprintln!("vhost-count: {why}");
            1
        }
    }
}
