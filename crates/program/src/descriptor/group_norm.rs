//! Group norm, with sums over the positions of each sample.

use super::*;

/// Extents of two sums per sample and channel.
fn sums_of(x: &View) -> [usize; 5] {
    [x.extent[0], 1, 1, 2, x.extent[4]]
}

pub(super) fn describe(kernel: &Kernel) -> Descriptor<'_> {
    match kernel {
        Kernel::GroupNormStatistics { x, sums } => {
            let sums = write("sums", sums).sums_of(sums_of(x));
            let operands = [read("x", x), sums.over(Over::Space(x))];
            Descriptor::new("group_norm_statistics", each(x, 3), operands)
        }
        Kernel::GroupNormForward {
            x,
            sums,
            gamma,
            beta,
            y,
            groups,
            count,
            ..
        } => {
            let operands = [
                read("x", x),
                read("sums", sums).sums_of(sums_of(x)),
                read("gamma", gamma).vector(x.extent[4]),
                read("beta", beta).vector(x.extent[4]),
                write("y", y).like("x", x),
            ];
            let descriptor = Descriptor::new("group_norm_forward", each(x, 2), operands);
            grouped(descriptor, x, *groups).counts(*count)
        }
        Kernel::GroupNormBackwardStatistics { .. } => backward_statistics(kernel),
        Kernel::GroupNormBackwardData { .. } => backward_data(kernel),
        other => panic!("{other:?} is described elsewhere"),
    }
}

fn grouped<'k>(descriptor: Descriptor<'k>, x: &View, groups: usize) -> Descriptor<'k> {
    let channels = x.extent[4];
    descriptor
        .require(groups > 0 && channels.is_multiple_of(groups), || {
            format!("{groups} groups do not divide {channels} channels")
        })
        .constant(Constant::Number("groups", groups))
}

fn backward_statistics(kernel: &Kernel) -> Descriptor<'_> {
    let Kernel::GroupNormBackwardStatistics {
        x,
        sums,
        dy,
        gradient_sums,
        dgamma,
        dbeta,
        groups,
        count,
        accumulate,
        ..
    } = kernel
    else {
        panic!("{kernel:?} is described elsewhere");
    };
    let parameter = |name, view| {
        let gradient = result(name, view, *accumulate).vector(x.extent[4]);
        gradient.over(Over::Positions(dy))
    };
    let operands = [
        read("x", x),
        read("sums", sums).sums_of(sums_of(x)),
        linear("dy", dy).like("x", x),
        parameter("dgamma", dgamma),
        parameter("dbeta", dbeta),
    ];
    let gradient_sums = gradient_sums.iter().map(|view| {
        let sums = write("gradient_sums", view).sums_of(sums_of(x));
        sums.over(Over::Space(dy))
    });
    let descriptor = Descriptor::new("group_norm_backward_statistics", each(x, 5), operands);
    grouped(descriptor.and(gradient_sums), x, *groups)
        .counts(*count)
        .accumulates(*accumulate)
}

fn backward_data(kernel: &Kernel) -> Descriptor<'_> {
    let Kernel::GroupNormBackwardData {
        x,
        sums,
        gamma,
        dy,
        gradient_sums,
        dx,
        groups,
        count,
        accumulate,
        ..
    } = kernel
    else {
        panic!("{kernel:?} is described elsewhere");
    };
    let operands = [
        read("x", x),
        read("sums", sums).sums_of(sums_of(x)),
        read("gamma", gamma).vector(x.extent[4]),
        read("dy", dy).like("x", x),
        read("gradient_sums", gradient_sums).sums_of(sums_of(x)),
        result("dx", dx, *accumulate).like("x", x),
    ];
    let descriptor = Descriptor::new("group_norm_backward_data", each(x, 6), operands);
    grouped(descriptor, x, *groups)
        .counts(*count)
        .accumulates(*accumulate)
}
