//! What is suggested for words of other frameworks.

#![allow(clippy::unwrap_used)] // The setting for tests leaves out their helper functions.

use partita_graph::text;

/// A model with this line behind an input and a convolution `c`.
fn model(line: &str) -> String {
    format!(
        "model m\ninput x channels=4 extent=8x8x8\nc = conv x filters=6 kernel=3 pad=1 bias=true\n{line}\n\
         f = flatten d\nl = linear f features=2 bias=true\nloss = mse l\n"
    )
}

fn assert_suggested(cases: &[(&str, &str)]) {
    for (line, nearest) in cases {
        let error = text::parse(&model(line)).unwrap_err().to_string();
        assert!(error.contains("line 4"), "{error}");
        let help = format!("help: try {nearest}; possible values: ");
        assert!(error.contains(&help), "{line}: {error}");
    }
}

#[test]
fn keys_of_other_frameworks() {
    assert_suggested(&[
        ("d = batch_norm c eps=1e-5 momentum=0.1", "`epsilon`"),
        ("d = conv c out_channels=2 kernel=3", "`filters`"),
        ("d = conv c filters=2 kernel_size=3", "`kernel`"),
        ("d = conv c padding_mode=zeros", "`padding`"),
        ("d = conv_transpose c padding=1", "`pad`"),
        ("d = dropout c p=0.3", "`rate`"),
        ("d = leaky_relu c negative_slope=0.1", "`slope`"),
        ("d = prelu c slopes=one init=0.1", "`init_slope`"),
        ("d = prelu c num_parameters=1", "`slopes`"),
        ("d = group_norm c num_groups=2", "`groups`"),
        ("d = attention c c c num_heads=2", "`heads`"),
        ("d = upsample c scale_factor=2", "`factor`"),
        (
            "d = average_pool c count_include_pad=true",
            "`count_padding`",
        ),
        (
            "d = softmax_cross_entropy c label_smoothing=0.1",
            "`smoothing`",
        ),
        ("d = batch_norm c weight=c.weight", "`gamma`"),
        ("d = conv c strid=2", "`stride`"),
        (
            "d = conv c in_channels=6",
            "to leave it out, as it follows from the input",
        ),
        ("d = layer_norm c elementwise_affine=false", "`affine`"),
        (
            "d = relu c inplace=true",
            "to leave it out, as it does not change the result",
        ),
        ("d = relu c slope=0.1", "no key"),
    ]);
}

#[test]
fn values_of_other_frameworks() {
    assert_suggested(&[
        (
            "d = conv c filters=2 kernel=3 padding=circular bias=true",
            "`padding=periodic`",
        ),
        (
            "d = conv c filters=2 kernel=3 padding=zeros bias=true",
            "`padding=zero`",
        ),
        (
            "d = conv c filters=2 kernel=3 padding=1 bias=true",
            "`pad=1`",
        ),
        (
            "d = conv c filters=2 kernel=3 padding=(1,1,0) bias=true",
            "`pad=1x1x0`",
        ),
        (
            "d = conv c filters=2 kernel=3x5x1 padding=same bias=true",
            "`pad=1x2x0`",
        ),
        (
            "d = conv c filters=2 kernel=3 padding=valid bias=true",
            "`pad=0`",
        ),
        ("d = pad c padding=1", "`pad=1`"),
        ("d = pad c pad=1 padding=edge", "`padding=replicate`"),
        (
            "d = conv c filters=2 kernel=3,3,1 bias=true",
            "`kernel=3x3x1`",
        ),
        ("d = conv c filters=2 kernel=3 bias=True", "`bias=true`"),
        ("d = conv c filters=2 kernel=3 bias=0.1", "`init_bias=0.1`"),
        (
            "d = conv c filters=2 kernel=3 bias=true init=kaiming",
            "`init=he_normal`",
        ),
        (
            "d = conv c filters=2 kernel=3 bias=true init=kaiming_normal_fan_out",
            "`init=he_normal_fan_out`",
        ),
        (
            "d = conv c filters=2 kernel=3 bias=true init=xavier",
            "`init=glorot_uniform`",
        ),
        (
            "d = conv c filters=2 kernel=3 bias=true init=normal",
            "`init=normal:0.01`",
        ),
        (
            "d = conv c filters=2 kernel=3 bias=true init_bias=zeros",
            "`init_bias=0`",
        ),
        (
            "d = conv c filters=2 kernel=3 bias=true weight=0.1",
            "`init=constant:0.1`",
        ),
        ("d = prelu c slopes=one slope=0.2", "`init_slope=0.2`"),
        ("d = layer_norm c epsilon=1e-5 gamma=1", "`init_gamma=1`"),
        ("d = upsample c factor=2 mode=trilinear", "`mode=linear`"),
        (
            "d = upsample c factor=2 align_corners=True",
            "`align_corners=true`",
        ),
    ]);
    let error = text::parse(&model("d = conv c filters=2 kernel=3 bias=true init=x")).unwrap_err();
    let names = "normal:DEVIATION, uniform:LIMIT or constant:NUMBER";
    assert!(error.to_string().contains(names), "{error}");
}

#[test]
fn operations_of_other_frameworks() {
    assert_suggested(&[
        ("d = Conv3d c", "`conv`"),
        ("d = nn.BatchNorm3d c", "`batch_norm`"),
        ("d = avg_pool c", "`average_pool`"),
        ("d = cat c x", "`concat`"),
        ("d = fc c", "`linear`"),
        ("d = cross_entropy c", "`softmax_cross_entropy`"),
    ]);
    let error = text::parse_loss("MSELoss").unwrap_err().to_string();
    assert!(
        error.contains("help: try `mse`; possible values: mse, "),
        "{error}"
    );
}

/// The padding of a convolution is a node that no line names, so it takes a free name.
#[test]
fn the_padding_of_a_convolution_takes_a_free_name() {
    let taken =
        "d.pad = relu c\nd = conv d.pad filters=2 kernel=3 pad=1 bias=true padding=replicate";
    let parsed = text::parse(&model(taken)).unwrap();
    let printed = text::print(&parsed);
    assert!(printed.contains("d.pad_2 = pad d.pad"), "{printed}");
    assert_eq!(text::parse(&printed).unwrap(), parsed);
    let later = "d = conv c filters=2 kernel=3 pad=1 bias=true padding=replicate\nd.pad = relu d";
    let error = text::parse(&model(later)).unwrap_err().to_string();
    assert!(error.contains("perhaps of the padding of `d`"), "{error}");
    assert!(error.ends_with("help: try `d.pad_2`"), "{error}");
}
