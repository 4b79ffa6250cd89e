// The dashboard and the alerts as a monitoring mixin. The plain files are the source.
{
  _config:: {
    // What this project's severities are called at your place.
    severity: { critical: 'critical', warning: 'warning', info: 'info' },
  },

  local config = self._config,

  grafanaDashboards:: {
    'gotsem.json': import '../grafana/gotsem.json',
  },

  prometheusAlerts:: {
    local rules = std.parseYaml(importstr '../prometheus/gotsem.rules.yml'),
    groups: [
      group {
        rules: [
          rule { labels+: { severity: config.severity[super.severity] } }
          for rule in group.rules
        ],
      }
      for group in rules.groups
    ],
  },
}
