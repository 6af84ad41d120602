// Times single convolutions in oneDNN on this CPU, a peer of Partita's kernels.
//
// peer_onednn blocked|channels_last THREADS
//
// The line protocol is that of crates/cpu/examples/convolution.rs: a line "n c f d h w kd kh kw sd
// sh sw pd ph pw dilation groups direction repeats" is answered by {"seconds": [...], ...}, after one
// run that does not count. With `blocked` oneDNN chooses the layouts of all tensors; with
// `channels_last` activations are (N, D, H, W, C) and it chooses that of the weights. Tensors are
// made in these layouts, so no reorder is timed. Two-dimensional convolutions are described as such.

#include <chrono>
#include <cstring>
#include <exception>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

#include "oneapi/dnnl/dnnl.hpp"

using dnnl::memory;
using tag = memory::format_tag;

struct Asked {
    memory::dims source, weights, target, stride, dilation, padding, padding_high;
    std::string direction;
    int repeats = 0;
};

Asked parse(const std::string &line) {
    std::istringstream words(line);
    long n, c, f, in[3], k[3], s[3], p[3], dilation, groups;
    Asked asked;
    words >> n >> c >> f;
    for (auto *list : {in, k, s, p})
        for (int i = 0; i < 3; ++i) words >> list[i];
    words >> dilation >> groups >> asked.direction >> asked.repeats;
    if (!words) throw std::runtime_error("19 words are needed: " + line);
    asked.source = {n, c};
    asked.target = {n, f};
    asked.weights = {f / groups, c / groups};
    if (groups > 1) asked.weights.insert(asked.weights.begin(), groups);
    else asked.weights[0] = f;
    const bool is_2d = in[0] == 1 && k[0] == 1;
    for (int i = is_2d ? 1 : 0; i < 3; ++i) {
        const long reach = (k[i] - 1) * dilation + 1;
        const long out = (in[i] + 2 * p[i] - reach) / s[i] + 1;
        asked.source.push_back(in[i]);
        asked.target.push_back(out);
        asked.weights.push_back(k[i]);
        asked.stride.push_back(s[i]);
        asked.dilation.push_back(dilation - 1);
        asked.padding.push_back(p[i]);
        asked.padding_high.push_back((out - 1) * s[i] + reach - in[i] - p[i]);
    }
    return asked;
}

memory::desc describe(const memory::dims &dims, tag layout) {
    return memory::desc(dims, memory::data_type::f32, layout);
}

memory filled(const memory::desc &desc, const dnnl::engine &engine) {
    memory made(desc, engine);
    auto *values = static_cast<float *>(made.get_data_handle());
    std::minstd_rand random(1);
    std::uniform_real_distribution<float> uniform(-0.5f, 0.5f);
    for (size_t i = 0; i < desc.get_size() / sizeof(float); ++i) values[i] = uniform(random);
    return made;
}

using Arguments = std::unordered_map<int, memory>;

std::string run(const Asked &asked, bool channels_last, dnnl::engine &engine, dnnl::stream &stream) {
    const auto train = dnnl::prop_kind::forward_training;
    const auto direct = dnnl::algorithm::convolution_direct;
    const bool is_2d = asked.stride.size() == 2;
    const tag layout = !channels_last ? tag::any : is_2d ? tag::nhwc : tag::ndhwc;
    const auto x = describe(asked.source, layout), y = describe(asked.target, layout);
    const auto w = describe(asked.weights, tag::any);
    const dnnl::convolution_forward::primitive_desc forward(engine, train, direct, x, w, y,
        asked.stride, asked.dilation, asked.padding, asked.padding_high);
    dnnl::primitive primitive;
    Arguments arguments;
    const char *name = nullptr;
    if (asked.direction == "forward") {
        primitive = dnnl::convolution_forward(forward);
        name = forward.impl_info_str();
        arguments = {{DNNL_ARG_SRC, filled(forward.src_desc(), engine)},
            {DNNL_ARG_WEIGHTS, filled(forward.weights_desc(), engine)},
            {DNNL_ARG_DST, filled(forward.dst_desc(), engine)}};
    } else if (asked.direction == "backward_data") {
        const dnnl::convolution_backward_data::primitive_desc data(engine, direct, x, w, y,
            asked.stride, asked.dilation, asked.padding, asked.padding_high, forward);
        primitive = dnnl::convolution_backward_data(data);
        name = data.impl_info_str();
        arguments = {{DNNL_ARG_DIFF_DST, filled(data.diff_dst_desc(), engine)},
            {DNNL_ARG_WEIGHTS, filled(data.weights_desc(), engine)},
            {DNNL_ARG_DIFF_SRC, filled(data.diff_src_desc(), engine)}};
    } else if (asked.direction == "backward_weight") {
        const dnnl::convolution_backward_weights::primitive_desc weight(engine, direct, x, w, y,
            asked.stride, asked.dilation, asked.padding, asked.padding_high, forward);
        primitive = dnnl::convolution_backward_weights(weight);
        name = weight.impl_info_str();
        arguments = {{DNNL_ARG_SRC, filled(weight.src_desc(), engine)},
            {DNNL_ARG_DIFF_DST, filled(weight.diff_dst_desc(), engine)},
            {DNNL_ARG_DIFF_WEIGHTS, filled(weight.diff_weights_desc(), engine)}};
    } else {
        throw std::runtime_error("no direction " + asked.direction);
    }
    std::ostringstream answer;
    answer << "{\"seconds\": [";
    for (int turn = 0; turn <= asked.repeats; ++turn) {
        const auto start = std::chrono::steady_clock::now();
        primitive.execute(stream, arguments);
        stream.wait();
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
        if (turn > 0) answer << (turn > 1 ? ", " : "") << taken.count();
    }
    answer << "], \"implementation\": \"" << name << "\"}";
    return answer.str();
}

int main(int count, char **words) {
    if (count != 3 || (std::strcmp(words[1], "blocked") && std::strcmp(words[1], "channels_last"))) {
        std::cerr << "peer_onednn blocked|channels_last THREADS" << std::endl;
        return 2;
    }
    const bool channels_last = !std::strcmp(words[1], "channels_last");
    dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    dnnl::stream stream(engine);
    const auto *version = dnnl_version();
    std::cout << "{\"ready\": {\"version\": \"" << version->major << "." << version->minor << "."
              << version->patch << "\", \"layout\": \"" << words[1] << "\", \"threads\": " << words[2]
              << "}}" << std::endl;
    for (std::string line; std::getline(std::cin, line) && line != "quit";) {
        if (line.empty()) continue;
        try {
            std::cout << run(parse(line), channels_last, engine, stream) << std::endl;
        } catch (const std::exception &error) {
            std::cout << "{\"error\": \"" << error.what() << "\"}" << std::endl;
        }
    }
}
