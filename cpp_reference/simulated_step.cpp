// The messages of a training step without its network, for SimGrid's SMPI: how long would the step take on a cluster
// that is only described? Built by smpicxx, run by smpirun; `mpitrain bench simulate` does both.
//
//   P ranks, N of each node      R rows of all ranks      n numbers a row
//
// A rank computes as long as was measured, then all rows are added, as the compiled engine of mpitrain does. Ranks of
// one node do so in its memory: each copies its rows there, waits for the last one, and adds all of them. Of several
// nodes the first ranks, the leaders, add what their node has alone, in blocks: largest subtrees of the one tree over
// all rows. Where each node has one block, the leaders' sums double from round to round; else each leader gives its
// blocks to all others. A second meeting gives total or blocks to the node's other ranks.
#include <mpi.h>
#include <smpi/smpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "partition.hpp"
#include "virtual_ranks.hpp"

namespace {

constexpr double flops_a_second = 1e9;  // of a core, as platform.py describes all of them
constexpr int meeting_tag = 1;

struct StepOptions {
    int ranks_per_node = 1;     // N
    std::int64_t num_rows = 1;  // R
    int row_length = 1;         // n
    double computing_s = 0;     // of the rank with most rows
    double row_s = 0;           // for copying, or adding, one row in the node's memory
    int num_steps = 4;          // timed, after one that is not
    bool adds_numbers = false;  // whether rows hold numbers, whose sum is printed
};

/// Where this rank is.
struct Place {
    int rank, world_size, ranks_per_node;

    int node() const { return rank / ranks_per_node; }
    int num_nodes() const { return (world_size + ranks_per_node - 1) / ranks_per_node; }
    int leader_of(int node) const { return node * ranks_per_node; }
    int end_of(int node) const { return std::min(leader_of(node + 1), world_size); }
    bool leads() const { return rank == leader_of(node()); }
    bool is_alone() const { return end_of(node()) - leader_of(node()) == 1; }
};

/// Keeps this rank's core busy.
void work(double seconds) {
    if (seconds > 0) smpi_execute_flops(seconds * flops_a_second);
}

std::int64_t smallest_power_of_two(std::int64_t number) {
    std::int64_t power = 1;
    while (power < number) power *= 2;
    return power;
}

/// Which node has which rows, the same on all ranks.
class Layout {
  public:
    Layout(const StepOptions& options, const Place& place) : num_rows_(options.num_rows) {
        for (int rank = 0; rank < place.world_size; ++rank) {
            const Range own = rank_range(num_rows_, place.world_size, rank);
            most_rows_ = std::max(most_rows_, own.size());
            node_of_row_.insert(node_of_row_.end(), static_cast<std::size_t>(own.size()), rank / place.ranks_per_node);
        }
        first_block_.assign(static_cast<std::size_t>(place.num_nodes()) + 1, 0);
        find_blocks(0, smallest_power_of_two(num_rows_));
        most_blocks_ = *std::max_element(first_block_.begin(), first_block_.end());  // counts, until they are added up
        for (std::size_t node = 1; node < first_block_.size(); ++node) first_block_[node] += first_block_[node - 1];
        find_doubling(place.num_nodes());
    }

    /// Of the rank with most rows.
    std::int64_t most_rows() const { return most_rows_; }
    /// Of the node with most.
    std::int64_t most_blocks() const { return most_blocks_; }
    /// Whether a block a node, and their tree, let the sums double in each round.
    bool doubles() const { return doubles_; }
    /// Each block's rows, in the order of the tree, which is that of the nodes.
    const std::vector<Range>& blocks() const { return blocks_; }
    Range blocks_of(int node) const {
        const auto n = static_cast<std::size_t>(node);
        return {first_block_[n], first_block_[n + 1]};
    }

  private:
    void find_blocks(std::int64_t first, std::int64_t size) {
        const std::int64_t end = std::min(first + size, num_rows_);
        if (first >= end) return;
        const int node = node_of_row_[static_cast<std::size_t>(first)];
        if (node_of_row_[static_cast<std::size_t>(end - 1)] == node) {
            blocks_.push_back({first, end});
            ++first_block_[static_cast<std::size_t>(node) + 1];
            return;
        }
        find_blocks(first, size / 2);
        find_blocks(first + size / 2, size / 2);
    }

    void find_doubling(int num_nodes) {
        const std::int64_t stride = smallest_power_of_two(num_rows_) / num_nodes;
        doubles_ = static_cast<int>(blocks_.size()) == num_nodes && smallest_power_of_two(num_nodes) == num_nodes;
        for (std::size_t k = 0; k < blocks_.size(); ++k) {
            doubles_ = doubles_ && blocks_[k].start == static_cast<std::int64_t>(k) * stride;
        }
    }

    std::int64_t num_rows_, most_rows_ = 1, most_blocks_ = 1;
    std::vector<int> node_of_row_;           // [R]
    std::vector<Range> blocks_;              // [B]
    std::vector<std::int64_t> first_block_;  // [N + 1], of each node
    bool doubles_ = false;
};

/// All ranks of the simulator are one process: what is static here is memory that they share. Without numbers all rows
/// of all ranks lie in the same place, which is as long as the longest message.
class NodeMemory {
  public:
    NodeMemory(const StepOptions& options, const Layout& layout, int node)
        : adds_numbers_(options.adds_numbers), num_rows_(options.num_rows), length_(options.row_length) {
        static std::map<int, std::vector<float>> of_nodes;
        const auto num_blocks = static_cast<std::int64_t>(layout.blocks().size());
        std::vector<float>& mine = of_nodes[adds_numbers_ ? node : 0];
        mine.resize(
            static_cast<std::size_t>(length_ * (adds_numbers_ ? num_rows_ + 1 + num_blocks : layout.most_blocks())));
        start_ = mine.data();
    }
    float* row(std::int64_t v) const { return adds_numbers_ ? start_ + v * length_ : start_; }  // [n]
    float* block(std::int64_t b) const { return row(num_rows_ + 1 + b); }
    float* total() const { return row(num_rows_); }

  private:
    bool adds_numbers_;
    std::int64_t num_rows_, length_;
    float* start_;
};

class Step {
  public:
    Step(const StepOptions& options, const Place& place, const Layout& layout)
        : options_(options),
          place_(place),
          layout_(layout),
          length_(static_cast<std::size_t>(options.row_length)),
          own_(rank_range(options.num_rows, place.world_size, place.rank)),
          memory_(options, layout, place.node()),
          received_(options.adds_numbers ? length_ : 0) {}

    void take() {
        work(options_.computing_s * static_cast<double>(own_.size()) / static_cast<double>(layout_.most_rows()));
        write_own_rows();
        meet();
        if (place_.num_nodes() == 1) {
            if (!place_.is_alone()) touch_rows(options_.num_rows);  // what one rank adds was measured as computing
            add_blocks();
            add_across();
            return;
        }
        if (place_.leads()) layout_.doubles() ? double_recursively() : gather_blocks();
        meet();
        if (!layout_.doubles()) {
            touch_rows(static_cast<std::int64_t>(layout_.blocks().size()));
            add_across();
        } else if (!place_.leads()) {
            touch_rows(1);
        }
    }

    const float* total() const { return memory_.total(); }

  private:
    /// Copies or adds rows of the node's memory, as far as time goes.
    void touch_rows(std::int64_t count) const { work(options_.row_s * static_cast<double>(count)); }

    void write_own_rows() {
        for (std::int64_t v = own_.start; v < own_.stop; ++v) {
            for (int i = 0; options_.adds_numbers && i < options_.row_length; ++i) {
                memory_.row(v)[i] = 1.0F / static_cast<float>(1 + v + i);  // no order of addition gives another's bits
            }
        }
        if (!place_.is_alone()) touch_rows(own_.size());
    }

    /// Returns when all ranks of the node have called it: the leader hears of each, then tells each.
    void meet() const {
        if (!place_.leads()) {
            const int leader = place_.leader_of(place_.node());
            MPI_Send(nullptr, 0, MPI_BYTE, leader, meeting_tag, MPI_COMM_WORLD);
            MPI_Recv(nullptr, 0, MPI_BYTE, leader, meeting_tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            return;
        }
        for (int rank = place_.rank + 1; rank < place_.end_of(place_.node()); ++rank) {
            MPI_Recv(nullptr, 0, MPI_BYTE, rank, meeting_tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
        for (int rank = place_.rank + 1; rank < place_.end_of(place_.node()); ++rank) {
            MPI_Send(nullptr, 0, MPI_BYTE, rank, meeting_tag, MPI_COMM_WORLD);
        }
    }

    /// The rows of this node's blocks, each in its tree, into the blocks.
    void add_blocks() const {
        if (!options_.adds_numbers) return;
        const Range own = layout_.blocks_of(place_.node());
        for (std::int64_t b = own.start; b < own.stop; ++b) {
            const Range rows = layout_.blocks()[static_cast<std::size_t>(b)];
            std::vector<float> tree(memory_.row(rows.start), memory_.row(rows.stop));
            add_tree(tree.data(), static_cast<std::size_t>(rows.size()), length_);
            std::copy_n(tree.data(), length_, memory_.block(b));
        }
    }

    /// All blocks into the total, in the tree of which they are subtrees.
    void add_across() const {
        if (!options_.adds_numbers) return;
        std::size_t next_block = 0;
        const std::vector<float> sum = sum_of(0, smallest_power_of_two(options_.num_rows), next_block);
        std::copy(sum.begin(), sum.end(), memory_.total());
    }

    std::vector<float> sum_of(std::int64_t first, std::int64_t size, std::size_t& next_block) const {
        const std::int64_t end = std::min(first + size, options_.num_rows);
        if (first >= end) return {};
        if (layout_.blocks()[next_block].stop == end) {
            const float* block = memory_.block(static_cast<std::int64_t>(next_block++));
            return {block, block + length_};
        }
        std::vector<float> lower = sum_of(first, size / 2, next_block);
        const std::vector<float> upper = sum_of(first + size / 2, size / 2, next_block);
        for (std::size_t i = 0; i < upper.size(); ++i) lower[i] += upper[i];
        return lower;
    }

    /// At distance d, leaders whose nodes' numbers differ by d hold the halves of one subtree; both add them.
    void double_recursively() {
        add_blocks();
        float* sum = memory_.block(layout_.blocks_of(place_.node()).start);
        float* other = options_.adds_numbers ? received_.data() : sum;
        if (!place_.is_alone()) touch_rows(own_rows_of_node());
        for (int distance = 1; distance < place_.num_nodes(); distance *= 2) {
            const int partner = place_.leader_of(place_.node() ^ distance);
            MPI_Sendrecv(sum, options_.row_length, MPI_FLOAT, partner, 0, other, options_.row_length, MPI_FLOAT,
                         partner, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            for (std::size_t i = 0; i < received_.size(); ++i) sum[i] += other[i];
            touch_rows(1);
        }
        if (options_.adds_numbers) std::copy_n(sum, length_, memory_.total());
        if (!place_.is_alone()) touch_rows(1);
    }

    /// Each leader gives its node's blocks to all others, and takes theirs, all at once.
    void gather_blocks() {
        add_blocks();
        touch_rows(own_rows_of_node());
        MPI_Datatype row_type;
        MPI_Type_contiguous(options_.row_length, MPI_FLOAT, &row_type);
        MPI_Type_commit(&row_type);
        const Range own = layout_.blocks_of(place_.node());
        std::vector<MPI_Request> requests;
        requests.reserve(2 * static_cast<std::size_t>(place_.num_nodes()));  // MPI keeps their addresses
        for (int k = 1; k < place_.num_nodes(); ++k) {
            const int node = (place_.node() + k) % place_.num_nodes(), leader = place_.leader_of(node);
            const Range theirs = layout_.blocks_of(node);
            MPI_Irecv(memory_.block(theirs.start), static_cast<int>(theirs.size()), row_type, leader, 0, MPI_COMM_WORLD,
                      &requests.emplace_back());
            MPI_Isend(memory_.block(own.start), static_cast<int>(own.size()), row_type, leader, 0, MPI_COMM_WORLD,
                      &requests.emplace_back());
        }
        MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
        MPI_Type_free(&row_type);
    }

    std::int64_t own_rows_of_node() const {
        const Range own = layout_.blocks_of(place_.node());
        return layout_.blocks()[static_cast<std::size_t>(own.stop - 1)].stop -
               layout_.blocks()[static_cast<std::size_t>(own.start)].start;
    }

    const StepOptions& options_;
    Place place_;
    const Layout& layout_;
    std::size_t length_;
    Range own_;
    NodeMemory memory_;
    std::vector<float> received_;  // [n]
};

/// Collective. Whether all ranks read the bits of the root's total.
bool is_same_everywhere(const StepOptions& options, const Step& step) {
    std::vector<float> of_root(step.total(), step.total() + options.row_length);
    const std::size_t num_bytes = of_root.size() * sizeof(float);
    MPI_Bcast(of_root.data(), options.row_length, MPI_FLOAT, 0, MPI_COMM_WORLD);
    int same = std::memcmp(of_root.data(), step.total(), num_bytes) == 0 ? 1 : 0;
    MPI_Allreduce(MPI_IN_PLACE, &same, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return same == 1;
}

StepOptions parse(int argc, char** argv) {
    StepOptions options;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string flag = argv[i];
        const double value = std::atof(argv[i + 1]);
        if (flag == "--ranks-per-node") options.ranks_per_node = static_cast<int>(value);
        if (flag == "--rows") options.num_rows = static_cast<std::int64_t>(value);
        if (flag == "--row-length") options.row_length = static_cast<int>(value);
        if (flag == "--computing-s") options.computing_s = value;
        if (flag == "--row-s") options.row_s = value;
        if (flag == "--steps") options.num_steps = static_cast<int>(value);
        if (flag == "--adds-numbers") options.adds_numbers = value != 0;
    }
    return options;
}

void print_line(const StepOptions& options, const std::vector<double>& step_seconds, const Step& step, bool same) {
    std::printf("{\"step_us\": [");
    for (std::size_t k = 0; k < step_seconds.size(); ++k) std::printf("%s%.6f", k ? ", " : "", step_seconds[k] * 1e6);
    std::printf("], \"sum\": [");
    for (int i = 0; options.adds_numbers && i < options.row_length; ++i) {
        std::printf("%s%.9g", i ? ", " : "", static_cast<double>(step.total()[i]));
    }
    std::printf("], \"same_on_all_ranks\": %s}\n", same ? "true" : "false");
}

}  // namespace

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    const StepOptions options = parse(argc, argv);
    Place place{0, 1, options.ranks_per_node};
    MPI_Comm_rank(MPI_COMM_WORLD, &place.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &place.world_size);
    static const Layout layout(options, place);  // one for all ranks: thousands of them would fill the memory
    Step step(options, place, layout);
    std::vector<double> step_seconds;
    step.take();  // ranks begin at one time, and end a step at several: what follows goes on like this
    for (int k = 0; k < options.num_steps; ++k) {
        const double start = MPI_Wtime();
        step.take();
        step_seconds.push_back(MPI_Wtime() - start);
    }
    const bool same = !options.adds_numbers || is_same_everywhere(options, step);
    if (place.rank == 0) print_line(options, step_seconds, step, same);
    MPI_Finalize();
}
