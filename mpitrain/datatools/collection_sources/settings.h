/* Parser of the settings file, a subset of YAML. `mpitrain help collection` lists the keys. */

enum { NAME_LENGTH = 64, TEXT_LENGTH = 256, MOST_EDGES = 256, MESSAGE_LENGTH = 512 };

typedef struct {
    char name[NAME_LENGTH], units[NAME_LENGTH], standard_name[NAME_LENGTH], long_name[TEXT_LENGTH];
    int levels; /* number of values in a sample; 0: a single value, without a dimension of levels */
} variable_settings;

typedef struct {
    char output[TEXT_LENGTH];
    uint64_t seed;
    int64_t samples;
    variable_settings *variables; /* inputs, then targets */
    int num_inputs, num_targets;  /* number of variables, not of values */
    char stratifying[NAME_LENGTH];
    int num_edges, num_regions;
    float edges[MOST_EDGES];
} collection_settings;

static int width_of(const variable_settings *variable) { return variable->levels > 0 ? variable->levels : 1; }

static int num_values(const variable_settings *variables, int count) {
    int sum = 0;
    for (int i = 0; i < count; ++i) sum += width_of(variables + i);
    return sum;
}

static int num_strata(const collection_settings *settings) {
    return settings->num_regions > 0 ? settings->num_regions : settings->num_edges + 1;
}

/* State of the parser: file, line and section, and the buffer for an error message. */
typedef struct {
    collection_settings *settings;
    const char *file;
    int line;
    char section[NAME_LENGTH];
    char *message;
} settings_parser;

static int refuse(settings_parser *parser, const char *problem, const char *value) {
    snprintf(parser->message, MESSAGE_LENGTH, "%.200s:%d: %.180s: %.100s", parser->file, parser->line, value, problem);
    return MT_WRONG_SETTINGS;
}

/* Remove blanks and one pair of quotes at both ends, in place. */
static char *stripped(char *text) {
    while (isspace((unsigned char)*text)) ++text;
    size_t length = strlen(text);
    while (length > 0 && isspace((unsigned char)text[length - 1])) text[--length] = 0;
    if (length > 1 && (*text == '"' || *text == '\'') && text[length - 1] == *text) {
        text[length - 1] = 0;
        ++text;
    }
    return text;
}

static int copy_text(settings_parser *parser, char *to, size_t size, const char *value) {
    if (*value == 0 || strlen(value) >= size) return refuse(parser, "empty or too long", value);
    strcpy(to, value);
    return MT_OK;
}

static int copy_name(settings_parser *parser, char *to, const char *value) {
    int is_name = isalpha((unsigned char)*value);
    for (const char *one = value; *one; ++one) is_name = is_name && (isalnum((unsigned char)*one) || *one == '_');
    if (!is_name) return refuse(parser, "not a name; use letters, digits and _", value);
    return copy_text(parser, to, NAME_LENGTH, value);
}

static int read_count(settings_parser *parser, int64_t *to, int64_t least, int64_t most, const char *value) {
    char *end;
    errno = 0;
    const long long number = strtoll(value, &end, 10);
    if (*end || end == value || errno || number < least || number > most)
        return refuse(parser, least > 0 ? "give a whole number, 1 or more" : "give a whole number, 0 or more", value);
    *to = number;
    return MT_OK;
}

static int read_edges(settings_parser *parser, char *value) {
    collection_settings *settings = parser->settings;
    const size_t length = strlen(value);
    if (length < 2 || value[0] != '[' || value[length - 1] != ']')
        return refuse(parser, "give increasing numbers, as in [0.5, 1.5]", value);
    value[length - 1] = 0;
    for (char *word = strtok(value + 1, ","); word; word = strtok(NULL, ",")) {
        char *end;
        const float edge = strtof(word, &end);
        const int has_room = settings->num_edges < MOST_EDGES;
        if (end == word || *stripped(end) || !has_room ||
            (settings->num_edges > 0 && edge <= settings->edges[settings->num_edges - 1]))
            return refuse(parser, "give at most 256 increasing numbers, as in [0.5, 1.5]", word);
        settings->edges[settings->num_edges++] = edge;
    }
    return MT_OK;
}

static int read_variable_key(settings_parser *parser, const char *key, char *value) {
    collection_settings *settings = parser->settings;
    const int count = settings->num_inputs + settings->num_targets;
    if (count == 0) return refuse(parser, "begin each variable with '- name: NAME'", key);
    variable_settings *variable = settings->variables + count - 1;
    int64_t levels = 0;
    if (!strcmp(key, "name")) return copy_name(parser, variable->name, value);
    if (!strcmp(key, "units")) return copy_text(parser, variable->units, NAME_LENGTH, value);
    if (!strcmp(key, "standard_name")) return copy_text(parser, variable->standard_name, NAME_LENGTH, value);
    if (!strcmp(key, "long_name")) return copy_text(parser, variable->long_name, TEXT_LENGTH, value);
    if (strcmp(key, "levels"))
        return refuse(parser, "unknown key; a variable has name, units, standard_name, long_name, levels", key);
    const int status = read_count(parser, &levels, 1, 100000, value);
    variable->levels = (int)levels;
    return status;
}

static int read_strata_key(settings_parser *parser, const char *key, char *value) {
    collection_settings *settings = parser->settings;
    int64_t regions = 0;
    if (!strcmp(key, "variable")) return copy_name(parser, settings->stratifying, value);
    if (!strcmp(key, "edges")) return read_edges(parser, value);
    if (strcmp(key, "regions")) return refuse(parser, "unknown key; strata have variable and edges, or regions", key);
    const int status = read_count(parser, &regions, 1, 100000, value);
    settings->num_regions = (int)regions;
    return status;
}

static int read_top_key(settings_parser *parser, const char *key, char *value) {
    collection_settings *settings = parser->settings;
    int64_t seed = 0;
    if (!strcmp(key, "output")) return copy_text(parser, settings->output, TEXT_LENGTH, value);
    if (!strcmp(key, "samples")) return read_count(parser, &settings->samples, 1, INT32_MAX, value);
    if (!strcmp(key, "seed")) {
        const int status = read_count(parser, &seed, 0, INT64_MAX, value);
        settings->seed = (uint64_t)seed;
        return status;
    }
    if (strcmp(key, "inputs") && strcmp(key, "targets") && strcmp(key, "strata"))
        return refuse(parser, "unknown key; give output, samples, seed, inputs, targets, strata", key);
    if (*value) return refuse(parser, "write its entries on the lines below", key);
    strcpy(parser->section, key);
    return MT_OK;
}

static int begin_variable(settings_parser *parser) {
    collection_settings *settings = parser->settings;
    const int is_input = !strcmp(parser->section, "inputs");
    const int count = settings->num_inputs + settings->num_targets;
    if (!is_input && strcmp(parser->section, "targets")) return refuse(parser, "only inputs and targets are lists", "-");
    if (is_input && settings->num_targets) return refuse(parser, "give inputs before targets", "inputs");
    void *grown = realloc(settings->variables, (size_t)(count + 1) * sizeof *settings->variables);
    if (!grown) return refuse(parser, "no memory", "-");
    settings->variables = grown;
    memset(settings->variables + count, 0, sizeof *settings->variables);
    ++*(is_input ? &settings->num_inputs : &settings->num_targets);
    return MT_OK;
}

/* Read `key: value` of a variable, of the strata, or of the top level. */
static int read_pair(settings_parser *parser, char *text, int is_indented) {
    char *colon = strchr(text, ':');
    if (!colon) return refuse(parser, "write KEY: VALUE", text);
    *colon = 0;
    char *key = stripped(text), *value = stripped(colon + 1);
    if (!is_indented) return read_top_key(parser, key, value);
    if (!strcmp(parser->section, "strata")) return read_strata_key(parser, key, value);
    return read_variable_key(parser, key, value);
}

/* Return the next comma outside quotes, NULL if there is none. */
static char *find_comma(char *text) {
    char quote = 0;
    for (; *text; ++text) {
        if (quote ? *text == quote : *text == '"' || *text == '\'') quote = quote ? 0 : *text;
        if (*text == ',' && !quote) return text;
    }
    return NULL;
}

/* Read `{name: h, units: m}`. */
static int read_pairs_in_braces(settings_parser *parser, char *text) {
    const size_t length = strlen(text);
    if (text[length - 1] != '}') return refuse(parser, "the brace is not closed on this line", text);
    text[length - 1] = 0;
    int status = MT_OK;
    for (char *next = text + 1; next && status == MT_OK;) {
        char *comma = find_comma(next);
        if (comma) *comma = 0;
        status = read_pair(parser, next, 1);
        next = comma ? comma + 1 : NULL;
    }
    return status;
}

static int read_line(settings_parser *parser, char *line) {
    for (char *sign = strchr(line, '#'); sign; sign = strchr(sign + 1, '#'))
        if (sign == line || isspace((unsigned char)sign[-1])) *sign = 0;
    const int is_indented = isspace((unsigned char)*line);
    char *text = stripped(line);
    if (*text == 0 || !strcmp(text, "---")) return MT_OK;
    if (*text != '-') return read_pair(parser, text, is_indented);
    const int status = begin_variable(parser);
    if (status != MT_OK) return status;
    text = stripped(text + 1);
    return *text == '{' ? read_pairs_in_braces(parser, text) : read_pair(parser, text, 1);
}

static const variable_settings *find_variable(const collection_settings *settings, const char *name, int before) {
    for (int i = 0; i < before; ++i)
        if (!strcmp(settings->variables[i].name, name)) return settings->variables + i;
    return NULL;
}

static int check_settings(settings_parser *parser) {
    collection_settings *settings = parser->settings;
    const int count = settings->num_inputs + settings->num_targets, has_edges = settings->num_edges > 0;
    if (!settings->output[0]) return refuse(parser, "missing; give the file to write", "output");
    if (!settings->samples) return refuse(parser, "missing; give the number of samples to keep", "samples");
    if (!settings->num_inputs || !settings->num_targets)
        return refuse(parser, "missing; give at least one of each", "inputs, targets");
    for (int i = 0; i < count; ++i) {
        if (!settings->variables[i].name[0]) return refuse(parser, "missing for a variable", "name");
        if (find_variable(settings, settings->variables[i].name, i))
            return refuse(parser, "two variables have this name", settings->variables[i].name);
    }
    if (settings->num_regions && (has_edges || settings->stratifying[0]))
        return refuse(parser, "give regions, or variable and edges", "strata");
    if (has_edges != (settings->stratifying[0] != 0)) return refuse(parser, "give both variable and edges", "strata");
    if (has_edges) {
        const variable_settings *variable = find_variable(settings, settings->stratifying, count);
        if (!variable || variable->levels)
            return refuse(parser, "must be an input or target without levels", settings->stratifying);
    }
    if (settings->samples < num_strata(settings)) return refuse(parser, "fewer than the number of strata", "samples");
    return MT_OK;
}

/* Read the settings from `text`, which is modified. Returns MT_OK, or MT_WRONG_SETTINGS with a message. */
static int read_settings(collection_settings *settings, const char *file, char *text, char *message) {
    settings_parser parser = {settings, file, 0, "", message};
    int status = MT_OK;
    for (char *line = text; line && status == MT_OK;) {
        char *end = strchr(line, '\n');
        if (end) *end = 0;
        ++parser.line;
        status = read_line(&parser, line);
        line = end ? end + 1 : NULL;
    }
    return status == MT_OK ? check_settings(&parser) : status;
}
